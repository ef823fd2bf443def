"""FUN403 gradient-differs-from-derivative

Detects: a gradient that is not the derivative of the output, found by differences of calls in the function's own dtype,
with dropout too; it needs neither float64 nor a declared spec.
Matters: without a formula to compare with, a backward that forgets a term looks like any other.
Fix: compare the tensor named with autograd of the same formula in plain torch.

Example:
    # faulty
    ds = p * dp  # the sum over the row is missing
    # correct
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
"""

from collections.abc import Iterator

from nsa_doctor.checks._shared.of_function import conditions, found, with_scaled_gradient
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.dropped import with_dropout
from nsa_doctor.probes.functions.slopes import Slope, slopes
from nsa_doctor.subject.function import FunctionSubject, Shape

_LENGTHS = {"smoke": (33,), "quick": (33, 64, 70), "full": (17, 33, 64, 70, 129)}
_OTHER_SEEDS = (31, 32)


def run(subject: FunctionSubject) -> Iterator[Finding]:
    if not subject.has_gradients:
        raise NotApplicableError(subject.gradient_refusal or "it is for inference alone")
    reported: set[str] = set()
    num_certain = 0
    for examined, shape, what in _examined(subject):
        found_here = list(slopes(examined, shape))
        wrong = {slope.tensor for slope in found_here if not slope.is_right}
        for slope in found_here:
            num_certain += slope.is_certain
            if slope.is_right or slope.tensor in reported or not _is_confirmed(examined, shape, slope):
                continue
            reported.add(slope.tensor)
            evidence: dict[str, Scalar] = {"tensor": slope.tensor, "target": slope.tensor, "deviation": slope.deviation}
            text = _text(subject, slope, what)
            yield found(subject, "FUN403", text, slope.problem, slope.answer, evidence, True, wrong=wrong)
    if not num_certain:
        raise NotComparableError("differences of outputs are drowned in rounding at every step")


def _examined(subject: FunctionSubject) -> Iterator[tuple[FunctionSubject, Shape, str]]:
    """The function at each length; at the first one with dropout too, where it has that."""
    shapes_asked = [shapes.at_length(subject, length) for length in _LENGTHS[subject.profile]]
    yield from ((subject, shape, "") for shape in shapes_asked)
    if (drops := with_dropout(subject, shapes_asked[0])) is not None:
        yield drops, shapes_asked[0], "with dropout, "


def _text(subject: FunctionSubject, slope: Slope, what: str) -> str:
    return (
        f"{what}{slope.tensor} of {subject.name} is not the derivative {conditions(subject, slope.problem)}: along "
        f"{slope.direction} the gradient says {short_number(slope.predicted)} and differences of outputs give "
        f"{short_number(slope.seen)}, {slope.deviation:.1%} apart (tolerance {slope.tolerance:.1%})"
    )


def _is_confirmed(subject: FunctionSubject, shape: Shape, slope: Slope) -> bool:
    """Whether other values show the same."""
    others = ([each for each in slopes(subject, shape, seed) if each.tensor == slope.tensor] for seed in _OTHER_SEEDS)
    return all(any(not each.is_right for each in other) for other in others)


def planted(subject: FunctionSubject) -> FunctionSubject:
    return with_scaled_gradient(subject, lambda keywords: 1.1)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN401",),
    priority=515,
)
