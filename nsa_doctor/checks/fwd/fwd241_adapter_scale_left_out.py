"""FWD241 adapter-scale-left-out

Detects: the factor of a low-rank adapter, alpha / rank, that its module holds, and of which another value changes
    neither the output nor a gradient, though every parameter of the adapter has a part in the output.
Matters: an adapter trained with a factor of 0.25 is applied with 1; what one path scales another does not, and the two
    give other results from the same weights.
Fix: multiply by it on every path that a pass may take.

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

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.adapter_scales import LENGTH, scales_left_out
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    module, found, count = scales_left_out(subject)
    if not count:
        raise NotApplicableError("no adapter in use holds an alpha / rank other than 1")
    kinds = [(type(each.holder), each.name) for each in found]
    for kind in dict.fromkeys(kinds):
        first, others = found[kinds.index(kind)], kinds.count(kind) - 1
        more = f" (and {others} more of its class)" if others else ""
        word = first.name if first.key is None else f"{first.name}[{first.key!r}]"
        holder = first.path or type(first.holder).__name__
        yield Finding(
            message=(
                f"{word}={first.value:g}, the alpha / rank of {holder}{more}, has no effect: with {first.another:g} in "
                f"its place outputs and gradients are the same"
            ),
            where=in_subject(replace(definition_place(first.holder), module=first.path), module),
            evidence={"attribute": first.name, "length": min(LENGTH, subject.max_length)},
            repro=command_for(subject, "FWD241"),
        )


def planted(subject: Subject) -> Subject:
    class Adapted(nn.Module):
        """The subject, and an adapter whose factor is left out."""

        def __init__(self, alpha: float = 3.0, rank: int = 4) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.shift = nn.Parameter(torch.tensor([0.1, 0.2]))
            self.alpha, self.rank, self.scaling = alpha, rank, alpha / rank

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + self.shift.sum()

    return replace(subject, build=lambda _seed: Adapted(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
