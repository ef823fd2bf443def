"""FUN403 gradient-differs-from-derivative

Detects: a gradient that is not the derivative of the output, found by differences of calls in the function's own dtype;
it needs neither float64 nor a declared spec.
Matters: without a formula to compare with, a backward that forgets a term looks like any other.
Fix: compare the tensor named with autograd of the same formula in plain torch.

Example:
    # faulty
    ds = p * dp  # the sum over the row is missing
    # correct
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.slopes import Slope, slopes
from nsa_doctor.subject.function import FunctionSubject, Shape

_LENGTHS = {"smoke": (33,), "quick": (33, 64, 70), "full": (17, 33, 64, 70, 129)}
_OTHER_SEEDS = (31, 32)


def run(subject: FunctionSubject) -> Iterator[Finding]:
    if not subject.has_gradients:
        raise NotApplicableError(subject.gradient_refusal or "it is for inference alone")
    reported: set[str] = set()
    num_certain = 0
    for length in _LENGTHS[subject.profile]:
        shape = shapes.of_length(subject, shapes.base(subject), length, length)
        for slope in slopes(subject, shape):
            num_certain += slope.is_certain
            if slope.is_right or slope.tensor in reported or not _is_confirmed(subject, shape, slope):
                continue
            reported.add(slope.tensor)
            message = (
                f"{slope.tensor} of {subject.name} is not the derivative {conditions(subject, slope.problem)}: along "
                f"{slope.direction} the gradient says {short_number(slope.predicted)} and differences of outputs give "
                f"{short_number(slope.seen)}, {slope.deviation:.1%} apart (tolerance {slope.tolerance:.1%})"
            )
            evidence: dict[str, Scalar] = {"tensor": slope.tensor, "target": slope.tensor, "deviation": slope.deviation}
            yield found(subject, "FUN403", message, slope.problem, slope.answer, evidence, is_backward=True)
    if not num_certain:
        raise NotComparableError("differences of outputs are drowned in rounding at every step")


def _is_confirmed(subject: FunctionSubject, shape: Shape, slope: Slope) -> bool:
    """Whether other values show the same."""
    others = ([each for each in slopes(subject, shape, seed) if each.tensor == slope.tensor] for seed in _OTHER_SEEDS)
    return all(any(not each.is_right for each in other) for other in others)


class _Larger(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1.1


def planted(subject: FunctionSubject) -> FunctionSubject:
    def changes_a_gradient(*positional: Any, **keywords: Any) -> Any:
        index = [i for i, each in enumerate(positional) if isinstance(each, Tensor) and each.is_floating_point()][1]
        changed = _Larger.apply(positional[index])
        return subject.function(*positional[:index], changed, *positional[index + 1 :], **keywords)

    return injected(subject, changes_a_gradient)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=515,
)
