"""FWD274 squashed-twice

Detects: a softmax, a sigmoid or a softplus of probabilities: of what a softmax or a sigmoid gave, with nothing between,
in a forward pass, a loss or a training step.
Matters: numbers between 0 and 1 in place of scores: the second softmax is nearly flat, a sigmoid gives 0.5 to 0.73, a
softplus 0.69 to 1.31, whatever the model says, and gradients are a small part of what they should be.
Fix: give the scores to the second, or leave it out; where a model ends in one, say so in its name.

Example:
    # faulty
    concentration = F.softplus(scores.softmax(-1)) + 1
    # correct
    concentration = F.softplus(scores) + 1
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.every_call import first_seen_in_calls
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.applied_in_turn import InTurn, applied_in_turn
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

_OF_SHARES = ("softmax", "gumbel_softmax", "log_softmax")  # of other numbers than shares of one they are a choice
_THROUGH = ("MaskedFill",)  # what is hidden between the two
_OF_SCORES = ("sigmoid", "expit", "softplus", "logsigmoid")
_PROBABILITIES = ("the result of a softmax", "the result of a sigmoid")


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen_in_calls(subject, _squashed)
    if seen is None:
        return
    asked, each = seen
    first = f", made at {each.made.short_line}" if each.made is not None and each.made.line != each.place.line else ""
    yield Finding(
        message=f"{each.function} in {asked.name} is given {each.given}{first}: numbers between 0 and 1, "
        "where it takes scores of any size",
        where=in_subject(each.place, asked.sp.module),
        evidence={"call": asked.name, "operation": each.function},
        repro=command_for(subject, "FWD274"),
    )


def _squashed(sp: BuiltModule, call: Callable[[], Any]) -> Sequence[InTurn] | Caught:
    seen = applied_in_turn(sp, call, (*_OF_SHARES, *_OF_SCORES), _THROUGH)
    if isinstance(seen, Caught):
        return seen
    return [
        each for each in seen if each.given in _PROBABILITIES and (each.are_shares or each.function not in _OF_SHARES)
    ]


def planted(subject: Subject) -> Subject:
    def gated_twice(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output * output.sigmoid().sigmoid()

    return replace(subject, forward=gated_twice)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"), explained_by=("GRD233",))
