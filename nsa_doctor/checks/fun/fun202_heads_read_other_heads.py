"""FUN202 heads-read-other-heads

Detects: a query head that reads another head of keys and values than the convention gives it, forward or backward.
Matters: with h % G in place of h // (H/G) every head reads the wrong keys, and a loaded checkpoint is noise.
Fix: the heads of a group lie side by side: head h reads h // (H // G), and its gradients are added up there.

Example:
    # faulty
    k = k.repeat(1, heads // groups, 1, 1)
    # correct
    k = k.repeat_interleave(heads // groups, dim=1)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.head_reach import HeadReach, head_reaches
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 24


def run(subject: FunctionSubject) -> Iterator[Finding]:
    base = shapes.base(subject)
    if not subject.convention.has_one_pair:
        raise NotApplicableError("each of its branches has keys and values of its own")
    if base.groups < 2:
        raise NotApplicableError("it has one head of keys and values")
    shape = replace(shapes.at_length(subject, _LENGTH), batch=1)
    for reach in head_reaches(subject, replace(shape, filled=shape.filled[:1])):
        wrong = [head for head, groups in enumerate(reach.read) if groups != (reach.declared[head],)]
        if wrong:
            is_backward = reach.tensor != "out"
            of = f"{reach.tensor} of " if is_backward else ""
            message = f"{of}{subject.name} reads other heads of keys and values {conditions(subject, reach.problem)}: "
            evidence: dict[str, Scalar] = {"tensor": reach.tensor, "heads": ", ".join(map(str, wrong))}
            text = message + _text(reach, wrong)
            yield found(subject, "FUN202", text, reach.problem, reach.answer, evidence, is_backward, made_in="heads")
            return


def _text(reach: HeadReach, wrong: list[int]) -> str:
    head = wrong[0]
    read = " and ".join(map(str, reach.read[head])) or "none"
    text = f"query head {head} reads head {read}, declared is {reach.declared[head]}"
    shape = reach.problem.shape
    if all(groups == (head % shape.groups,) for head, groups in enumerate(reach.read)):
        text += f"; head h reads h % {shape.groups} throughout"
    return text + f"; {len(wrong)} of {shape.heads} heads are wrong"


def planted(subject: FunctionSubject) -> FunctionSubject:
    axis = {"bhsd": 1, "bshd": 2, "shd": 1}[subject.convention.layout]

    def in_another_order(*positional: Any, **keywords: Any) -> Any:
        tensors = [i for i, each in enumerate(positional) if isinstance(each, Tensor) and each.is_floating_point()]
        changed = [each.flip(axis) if i in tensors[1:3] else each for i, each in enumerate(positional)]
        return subject.function(*changed, **keywords)

    return injected(subject, in_another_order)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=408,
)
