"""FUN401 gradient-differs-from-oracle

Detects: a gradient of queries, keys, values or sinks that is not what the declared spec gives in float64, where the
output is right.
Matters: training goes on with a wrong direction; a factor of 5 % on one of three gradients shows in no loss curve.
Fix: compare the tensor named with autograd of plain torch; the scale is forgotten there, or a head of a group.

Example:
    # faulty
    dk = ds.transpose(-1, -2) @ q  # the scale of the scores is missing
    # correct
    dk = ds.transpose(-1, -2) @ q * scale
"""

from collections.abc import Iterator

from nsa_doctor.checks._shared.of_function import differs, require_spec, with_scaled_gradient
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.subject.function import FunctionSubject, Shape


def run(subject: FunctionSubject) -> Iterator[Finding]:
    require_spec(subject)
    if not subject.has_gradients:
        raise NotApplicableError(subject.gradient_refusal or "it is for inference alone")
    reported: set[str] = set()
    right: dict[str, Shape] = {}
    num_judged = 0
    for shape in shapes.every(subject):
        result = measured(subject, shape)
        if not result.is_forward_right:
            continue
        num_judged += 1
        for name in (each for each in result.answer.tensors if each.startswith("d")):
            excess = result.excess(name)
            if excess is None:
                right[name] = shape
            elif name not in reported:
                reported.add(name)
                control = f"right at {right[name]}" if name in right else ""
                wrong = result.wrong_gradients(result.answer.tensors)
                yield differs(subject, "FUN401", result.problem, excess, result.answer, control, wrong)
    if not num_judged:
        raise NotComparableError("the output is wrong at every shape, and with it every gradient")


def planted(subject: FunctionSubject) -> FunctionSubject:
    return with_scaled_gradient(subject, lambda keywords: 1.05)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=510,
)
