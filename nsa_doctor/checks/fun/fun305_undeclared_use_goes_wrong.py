"""FUN305 undeclared-use-goes-wrong

Detects: a wrong answer to a call that the signature offers and --spec does not mention: a mask, slopes or a bias that
differ in each row and head, a soft cap in the backward pass, a log of the sum of exponentials on demand, tokens to
append to a cache, pages in any order.
Matters: the first caller who uses the argument trains on the wrong gradient, or on another row's padding.
Fix: index each argument by every axis it has, forward and backward; refuse in words what is not served.

Example:
    # faulty
    scores = scores + bias[0]  # the bias of the first row for the whole batch
    # correct
    scores = scores + bias
"""

from collections.abc import Iterator
from dataclasses import replace

from nsa_doctor.checks._shared.of_function import conditions, differs, found, require_spec, with_scaled_gradient
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.cache_uses import appended, by_number
from nsa_doctor.probes.functions.uses import misuse, uses
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = {"smoke": (41,), "quick": (41, 75), "full": (41, 75, 129)}
_MOST = 3


def run(subject: FunctionSubject) -> Iterator[Finding]:
    require_spec(subject)
    reported: set[str] = set()
    for finding in _all(subject):
        tensor = str(finding.evidence["tensor"])
        if tensor not in reported and len(reported) < _MOST:
            reported.add(tensor)
            yield finding


def _all(subject: FunctionSubject) -> Iterator[Finding]:
    for length in _LENGTHS[subject.profile]:
        shape = shapes.at_length(subject, length)
        more = by_number(subject, shape) if subject.convention.is_cache else ()
        for use in (*uses(subject, shape), *more):
            wrong = misuse(use)
            if wrong is not None:
                problem, answer = wrong.measured.problem, wrong.measured.answer
                gradients = wrong.measured.wrong_gradients(answer.tensors)
                finding = differs(use.subject, "FUN305", problem, wrong.excess, answer, wrong.control, gradients)
                yield replace(finding, message=f"{use.what}, {finding.message}")
        for each in appended(subject, shape) if subject.convention.is_cache else ():
            message = f"{each.text} {conditions(subject, each.problem)}"
            evidence = {"tensor": each.tensor, "target": each.tensor}
            yield found(subject, "FUN305", message, each.problem, each.answer, evidence, made_in="writes")


def planted(subject: FunctionSubject) -> FunctionSubject:
    return with_scaled_gradient(subject, lambda keywords: 1.1 if any("scal" in name for name in keywords) else 1.0)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN201", "FUN202", "FUN301", "FUN401"),
    priority=525,
)
