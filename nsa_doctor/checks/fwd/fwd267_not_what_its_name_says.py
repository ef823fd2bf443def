"""FWD267 not-what-its-name-says

Detects: a module or a function named for an operation that is known exactly (Swish, SiLU, GELU, Mish, ReLU squared,
GLU and its kin, LayerScale, LayerNorm, RMSNorm; `masked_mean`, `masked_softmax`, `lengths_to_mask`,
`shift_tokens_right`, `logprobs_from_logits`), and whose answers, when it is asked alone, fit none of the forms that
bear that name, whatever its weights and its epsilon are.
Matters: the model trains all the same, and is another than the one that its code reads like: weights from elsewhere
give other outputs, and what was measured of the operation does not hold.
Fix: compute what the name says, or call torch's own operation; else give it another name.

Example:
    # faulty
    return x * x.tanh()
    # correct
    return x * x.sigmoid()
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.misnamed_helpers import misnamed_helpers
from nsa_doctor.probes.numerics.named_parts import misnamed
from nsa_doctor.subject.contract import Subject

_LENGTH = 8


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    reported: set[tuple[str, int]] = set()  # lines: a part may call a function of its name
    for part in chain(misnamed(sp, min(_LENGTH, subject.max_length)), misnamed_helpers(sp)):
        line = part.place.file, part.place.line
        if line not in reported:
            reported.add(line)
            yield Finding(
                message=f"{part.kind} is not what its name says: {part.text}",
                where=part.place,
                evidence={"operation": part.operation},
                repro=command_for(subject, "FWD267"),
            )


def planted(subject: Subject) -> Subject:
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.tanh()

    class Activated(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.activation = inner, Swish()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x)
            return output + self.activation(output)

    return replace(subject, build=lambda seed: Activated(subject.build(seed)))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101",),
    explained_by=("FWD203", "FWD233", "FWD246", "FWD261"),
    priority=457,
)
