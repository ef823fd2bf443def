"""FUN307 compiled-call-differs

Detects: an output or a gradient that is right when the function is called, and wrong when torch.compile has compiled
it. Where torch does not compile it, a note says why.
Matters: a model is compiled as a whole, this function with it; what was tested was the function as it is written.
Fix: keep what the compiler cannot see out of it: writes that no operator declares, sizes read from Python objects,
arguments changed in place.

Example:
    # faulty
    out = attend(q, k, v, scale=LAST.scale)  # a Python object, whose value the compiler keeps
    # correct
    out = attend(q, k, v, scale=q.shape[-1] ** -0.5)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import differs, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.compiled import answer_of, compiled
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = (33, 32)


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    twin = compiled(subject)
    num_compared = 0
    for length in _LENGTHS:
        plain = measured(subject, shapes.at_length(subject, length))
        if plain.answer.failure is not None or plain.first_excess(plain.answer.tensors) is not None:
            continue
        answer = answer_of(twin, plain.problem)
        if isinstance(answer, str):
            yield Note(message=f"torch.compile does not serve {subject.name}: {answer[:300]}")
            return
        num_compared += 1
        excess = plain.first_excess(answer.tensors)
        if excess is not None:
            yield differs(subject, "FUN307", plain.problem, excess, answer, "right when it is not compiled")
            return
    if not num_compared:
        raise NotComparableError("it is wrong as it is at every length that is compared")


def planted(subject: FunctionSubject) -> FunctionSubject:
    def shifts_where_it_is_compiled(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        return out * 1.05 if torch.compiler.is_compiling() else out

    return injected(subject, shifts_where_it_is_compiled)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="full",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN506",),
    priority=545,
)
