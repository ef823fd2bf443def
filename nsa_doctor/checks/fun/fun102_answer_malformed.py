"""FUN102 answer-malformed

Detects: an output or a gradient of another shape, dtype or device than its convention says.
Matters: a float32 output of bfloat16 inputs doubles the memory of all that follows; a transposed one is silently wrong.
Fix: return what the convention returns; cast the accumulator back to the dtype of the inputs.

Example:
    # faulty
    return accumulator / total
    # correct
    return (accumulator / total).to(q.dtype)
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import ask
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import FunctionSubject, Shape


def run(subject: FunctionSubject) -> Iterator[Finding]:
    for shape in _shapes(subject):
        problem = problem_of(subject, shape)
        answer = ask(subject, problem)
        for name, what in answer.malformed.items():
            message = f"{name} of {subject.name} has the wrong form {conditions(subject, problem)}: {what}"
            message += "".join(_served_otherwise(subject))
            evidence = {"kind": "wrong_shape", "tensor": name, "target": name}
            yield found(subject, "FUN102", message, problem, answer, evidence, name.startswith("d"))
            return


def _shapes(subject: FunctionSubject) -> tuple[Shape, ...]:
    asked = (shapes.square(subject), shapes.unequal(subject), shapes.other_sizes(subject))
    return (shapes.base(subject), *chain.from_iterable(asked))


def _served_otherwise(subject: FunctionSubject) -> Iterator[str]:
    """The convention by which the function has the right form at every size, where it may be meant for that one."""
    for each in subject.otherwise:
        other = replace(each, function=subject.function)
        answers = (ask(other, problem_of(other, shape)) for shape in _shapes(other))
        if all(answer.failure is None and not answer.malformed for answer in answers):
            yield f"; called by --like {other.convention.name} it has the right form everywhere"


def planted(subject: FunctionSubject) -> FunctionSubject:
    def in_float64(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        return result.double() if isinstance(result, Tensor) else (result[0].double(), *result[1:])

    return injected(subject, in_float64)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="function", profile="smoke", blocked_by=("FUN101",), priority=230
)
