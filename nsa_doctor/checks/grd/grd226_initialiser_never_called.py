"""GRD226 initialiser-never-called

Detects: a method that by its name initialises parameters (`init_weights`, `reset_parameters`, …), that neither runs
while the module is built nor is named in any source beside its class, and by which a parameter that has a default of
torch's, or was never written, would have clearly other values.
Matters: training starts from another distribution than was chosen; it converges more slowly or to something worse, and
nothing raises.
Fix: call it at the end of `__init__` (`self.init_weights()`, `self.apply(self._init_weights)`), or remove it.

Example:
    # faulty
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)

    def init_weights(self):
        nn.init.xavier_uniform_(self.query.weight, gain=2)
    # correct
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.init_weights()

    def init_weights(self):
        nn.init.xavier_uniform_(self.query.weight, gain=2)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.idle_initialisers import idle_initialisers
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for idle in idle_initialisers(subject):
        count = idle.num_others
        others = f" ({count} more {'differs' if count == 1 else 'differ'} too)" if count else ""
        yield Finding(
            message=(
                f"{idle.place.module_class}.{idle.name} initialises parameters, and nothing calls it: {idle.parameter} "
                f"has {idle.now}, and by it would have {idle.then}{others}"
            ),
            where=idle.place,
            evidence={"method": idle.name, "parameter": idle.parameter, "others": idle.num_others},
            repro=command_for(subject, "GRD226"),
        )


def planted(subject: Subject) -> Subject:
    class Scaled(nn.Module):
        """The subject, times what a layer makes of its output; the layer's initialiser is never called."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.layer = inner, nn.Linear(1, 8)

        def _initialise_weights(self) -> None:
            nn.init.normal_(self.layer.weight, std=0.001)
            nn.init.zeros_(self.layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + self.layer(output[..., :1].float()).mean(-1, keepdim=True).to(output)

    return replace(subject, build=lambda seed: Scaled(subject.build(seed)), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
