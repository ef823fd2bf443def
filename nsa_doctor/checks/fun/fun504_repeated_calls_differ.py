"""FUN504 repeated-calls-differ

Detects: calls on the same input whose answers are further apart than rounding; a note where they are not bit-equal.
Matters: a race, or memory that is sometimes stale, is wrong once in some hundred steps.
Fix: look for writes of two programs to one place, and for loads before the store they wait for.

Example:
    # faulty
    dk_ptr.store(dk_ptr.load() + part)  # from several programs at once
    # correct
    atomic_add(dk_ptr, part)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, differs, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.calling import ask
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 72
_TIMES = {"smoke": 6, "quick": 12, "full": 60}


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    base = measured(subject, shapes.at_length(subject, _LENGTH))
    unequal: dict[str, int] = {}
    for _ in range(_TIMES[subject.profile]):
        answer = ask(subject, base.problem)
        if base.first_excess(base.answer.tensors) is None:
            excess = base.first_excess(answer.tensors)
            if excess is not None:
                control = "an earlier call on the same input is right"
                yield differs(subject, "FUN504", base.problem, excess, answer, control)
                return
        for name, value in answer.tensors.items():
            unequal[name] = unequal.get(name, 0) + (not torch.equal(value, base.answer.tensors.get(name, value)))
    if any(unequal.values()):
        times = ", ".join(f"{name} in {count} of {_TIMES[subject.profile]}" for name, count in unequal.items() if count)
        yield Note(
            message=f"repeated calls are not bit-equal {conditions(subject, base.problem)}: {times}, within tolerance"
        )


def planted(subject: FunctionSubject) -> FunctionSubject:
    count = [0]

    def now_and_then(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        if out.shape[subject.convention.layout.replace("b", "" if out.ndim == 3 else "b").index("s")] == _LENGTH:
            count[0] += 1
        return out * (1.0 if count[0] % 3 else 1.2)

    count[0] = 0
    return injected(subject, now_and_then)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    priority=404,
)
