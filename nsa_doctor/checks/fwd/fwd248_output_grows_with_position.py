"""FWD248 output-grows-with-position

Detects: an attention that is given equal tokens, and whose output grows from token to token by a power of more than 1.5
of the position, or a state that grows by a factor: a sum that is multiplied by what should divide it, a decay above
one. What goes by another name and grows so is a note: a sum of sums may be meant.
Matters: attention gives a mean of values and a state forgets, so that a longer sequence is no larger one. What grows
drowns the residual stream at lengths that training seldom sees, and leaves the range of half precision.
Fix: divide by the sum of the weights; let a state decay: exp(-rate), with a rate that is not negative.

Example:
    # faulty
    y = q @ states.cumsum(1) * (q * k.cumsum(1)).sum(-1, keepdim=True)
    # correct
    y = q @ states.cumsum(1) / (q * k.cumsum(1)).sum(-1, keepdim=True)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.attention.growth_by_position import FEWEST, LENGTH, growing, line_of_growth
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_ANOTHER_SEED = 31337


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = min(LENGTH, subject.max_length)
    if length < FEWEST:
        raise NotApplicableError(f"it takes at most {length} tokens; of fewer than {FEWEST} growth says little")
    sp = comparable_module(subject, is_randomised=False)
    growth = growing(sp, length)
    other = replace(subject, seed=subject.seed + _ANOTHER_SEED)
    again = growth and growing(comparable_module(other, is_randomised=False), length)
    if growth is None or again is None or again.name != growth.name:
        return
    kind = type(growth.module).__name__
    place = line_of_growth(sp, length, growth) or definition_place(growth.module)
    place = replace(place, module=growth.name, module_class=kind)
    message = (
        f"of {length} equal tokens the output of {kind} grows by the power {short_number(growth.power)} of the position"
    )
    if not growth.is_promised:
        yield Note(message=message, where=place)
        return
    yield Finding(
        message=f"{message}; a mean over tokens does not grow, and a sum by the power 1",
        where=place,
        evidence={"power": growth.power, "length": length},
        repro=command_for(subject, "FWD248"),
    )


def planted(subject: Subject) -> Subject:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1).cumsum(1)

    class Behind(nn.Module):
        """The subject, and what mixes its tokens once more."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.attention = subject.build(subject.seed), Attention()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.attention(subject.forward(self.inner, x))
            return output

    return replace(subject, build=lambda _seed: Behind(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "NAN101"),
    priority=457,
    unless=("stochastic",),
)
