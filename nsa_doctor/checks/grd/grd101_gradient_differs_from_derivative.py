"""GRD101 gradient-differs-from-derivative

Detects: a gradient that is not the derivative: a hand-written backward that is wrong, a detach, `.data`, no_grad or
.item() on the way, a parameter wrapped again, a write that autograd does not see.
Matters: training goes on with a direction that is not downhill; the loss still falls, only later and less far.
Fix: look at the call named: all gradients behind it are right, the one it hands on is not.

Example:
    # faulty
    y = x / x.norm().item()  # for autograd the norm is a constant
    # correct
    y = x / x.norm()
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import said_of
from nsa_doctor.checks._shared.gradient import benches, shortest, valued_benches
from nsa_doctor.checks._shared.halved import half_findings, in_half_alone
from nsa_doctor.checks._shared.wrong_gradient import wrong_gradient
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.gradients.derivative import Agreement
from nsa_doctor.probes.gradients.rounds import note_of_rounds, rounds_without_gradient
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_SEEDS = (0, 1, 2)


def run(subject: Subject) -> Iterator[Finding | Note]:
    if (half := in_half_alone(subject)) is not None:
        yield from half_findings(subject, half, "GRD101")
        return
    could_tell = False
    for mode, length, make in benches(subject):
        agreement = make(length).agreement(_SEEDS)
        could_tell = could_tell or agreement is not Agreement.UNKNOWN
        if agreement is Agreement.DIFFERS:
            trained = comparable_module(subject, mode="train" if "train" in subject.modes else "eval")
            if rounds := rounds_without_gradient(trained):
                yield note_of_rounds(trained, rounds)
                return
            least, right = shortest(make, length, lambda bench: bench.agreement(_SEEDS) is Agreement.DIFFERS)
            yield wrong_gradient(subject, "GRD101", mode, least, right, make, longer=length if length > least else None)
            return
    for kind, mode, length, make in valued_benches(subject) if could_tell else ():
        if make(length).agreement(_SEEDS) is Agreement.DIFFERS:
            yield wrong_gradient(subject, "GRD101", mode, length, None, make, said_of(kind))
            return
    if not could_tell:
        raise NotComparableError("central differences change with their step at every length, so nothing can be said")


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * ctx.saved_tensors[0].sigmoid()


def planted(subject: Subject) -> Subject:
    def forgets_a_term(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = _Halved.apply(subject.forward(module, x))
        return output

    return replace(subject, forward=forgets_a_term)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("GRD401", "GRD402", "GRD403"),
    fuzzed=("wrong gradient",),
    telling=True,
)
