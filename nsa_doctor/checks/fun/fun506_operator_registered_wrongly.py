"""FUN506 operator-registered-wrongly

Detects: an operator of torch.library that the function calls and that is not what it is registered as: arguments that
it writes to without saying so, a fake implementation of another shape, dtype or layout. Its gradient is not looked at.
Matters: torch.compile and torch.export believe what is registered, and compute something else without a word.
Fix: declare `mutates_args`, and have `register_fake` return what the operator returns; see torch.library.opcheck.

Example:
    # faulty
    @attend.register_fake
    def _(q, k, v):
        return torch.empty_like(q)
    # correct
    @attend.register_fake
    def _(q, k, v):
        return q.new_empty(*q.shape[:-1], v.shape[-1])
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.registered import registered
from nsa_doctor.subject.function import FunctionSubject

_LONGEST = 300  # letters of what torch says


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    problem = problem_of(subject, shapes.at_length(subject, 33))
    operators = registered(subject, problem)
    if not operators:
        raise NotApplicableError("it calls no operator that is registered with torch.library")
    for each in operators:
        if each.wrong:
            test, sentence = next(iter(each.wrong.items()))
            message = f"{each.name}, which {subject.name} calls, is not what it is registered as"
            message += f" {conditions(subject, problem)}: {sentence[:_LONGEST]} ({test} of torch.library.opcheck)"
            yield found(subject, "FUN506", message, problem, evidence={"operator": each.name, "property": test})
        for test, sentence in each.missing.items():
            yield Note(message=f"not checked: {each.name}, {test}: {sentence[:_LONGEST]}")
            break


def planted(subject: FunctionSubject) -> FunctionSubject:
    operator = _doubles()

    def calls_an_operator(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        operator((result if isinstance(result, Tensor) else result[0]).detach())
        return result

    return injected(subject, calls_an_operator)


def _doubles() -> Any:
    """An operator whose fake implementation gives another shape."""
    name = "nsa_doctor_planted::doubles"
    operator = torch.library.custom_op(name, lambda x: 2 * x, mutates_args=(), schema="(Tensor x) -> Tensor")
    operator.register_fake(lambda x: x.new_empty(x.shape[1:]))
    return operator


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="function", blocked_by=("FUN101",), priority=570)
