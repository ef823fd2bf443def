"""FWD241 scale-without-effect

Detects: a factor that a module holds as a number (`scale`, `scaling`, `softcap`, by itself or in a dictionary), that
    one of its methods reads and no line which a pass comes to, and of which another value changes nothing.
Matters: an adapter trained with `alpha / rank` of 0.25 is applied with 1; what one path scales another does not,
    and the two give other results from the same weights.
Fix: multiply by it on every path that a pass may take, or refuse another value than 1.

Example:
    # faulty
    def forward(self, x):
        return self.base(x) + self.up(self.down(x))
    # correct
    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * self.scaling
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.scales_held import LENGTH, idle_factors
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    module, found = idle_factors(subject)
    kinds = [(type(each.holder), each.name) for each in found]
    for kind in dict.fromkeys(kinds):
        first, others = found[kinds.index(kind)], kinds.count(kind) - 1
        more = f" (and {others} more of its class)" if others else ""
        word = first.name if first.key is None else f"{first.name}[{first.key!r}]"
        holder = first.path or type(first.holder).__name__
        yield Finding(
            message=(
                f"{word}={first.value:g} that {holder}{more} holds has no effect: with {first.another:g} in its place "
                f"outputs and gradients are the same; it is read in {joined([each.name for each in first.readers])}"
            ),
            where=in_subject(replace(definition_place(first.holder), module=first.path), module),
            evidence={"attribute": first.name, "length": min(LENGTH, subject.max_length)},
            repro=command_for(subject, "FWD241"),
        )


def planted(subject: Subject) -> Subject:
    class Adapted(nn.Module):
        """An adapter beside the subject, whose factor one path leaves out."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.down = nn.Parameter(Tensor([0.1, 0.2]))
            self.scaling = 0.75

        def delta(self) -> Tensor:
            return self.down * self.scaling

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + self.down.sum()

    return replace(subject, build=lambda _seed: Adapted(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
