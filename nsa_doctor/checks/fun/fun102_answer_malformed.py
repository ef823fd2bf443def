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
from itertools import chain
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import ask
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import FunctionSubject


def run(subject: FunctionSubject) -> Iterator[Finding]:
    asked = (shapes.square(subject), shapes.unequal(subject), shapes.other_sizes(subject))
    for shape in (shapes.base(subject), *chain.from_iterable(asked)):
        problem = problem_of(subject, shape)
        answer = ask(subject, problem)
        for name, what in answer.malformed.items():
            message = f"{name} of {subject.name} has the wrong form {conditions(subject, problem)}: {what}"
            evidence = {"kind": "wrong_shape", "tensor": name, "target": name}
            yield found(subject, "FUN102", message, problem, answer, evidence, name.startswith("d"))
            return


def planted(subject: FunctionSubject) -> FunctionSubject:
    def in_float64(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        return result.double() if isinstance(result, Tensor) else (result[0].double(), *result[1:])

    return injected(subject, in_float64)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="function", profile="smoke", blocked_by=("FUN101",), priority=230
)
