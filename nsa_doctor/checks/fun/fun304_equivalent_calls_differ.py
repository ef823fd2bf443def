"""FUN304 equivalent-calls-differ

Detects: an answer or a gradient that changes when rows of the batch are computed alone, heads are put in another order,
or values are doubled; it needs no declared spec.
Matters: a row then depends on who else is in its batch, and the batch size on which it was tested hides what is wrong.
Fix: index batch and head by the program's own number in every load, and begin every sum at zero for each of them.

Example:
    # faulty
    total = torch.zeros(length)  # shared by all heads
    # correct
    total = torch.zeros(batch, heads, length)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.equivalents import equivalents
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = {"smoke": (48,), "quick": (48, 70), "full": (17, 48, 70, 129)}


def run(subject: FunctionSubject) -> Iterator[Finding]:
    reported: set[str] = set()
    for length in _LENGTHS[subject.profile]:
        shape = shapes.at_length(subject, length)
        for change, problem, answer, excess in equivalents(subject, shape):
            if excess.tensor in reported:
                continue
            reported.add(excess.tensor)
            message = (
                f"{excess.tensor} of {subject.name} changes when {change} {conditions(subject, problem)}: "
                f"{short_number(excess.value)} and {short_number(excess.truth)} at index {list(excess.index)}, "
                f"{excess.measure} error {short_number(excess.error)} (tolerance {short_number(excess.bound)})"
            )
            evidence = {"tensor": excess.tensor, "target": excess.tensor, "change": change}
            yield found(subject, "FUN304", message, problem, answer, evidence, excess.tensor.startswith("d"))


def planted(subject: FunctionSubject) -> FunctionSubject:
    def mixes_rows(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        return out + 0.01 * torch.roll(out, 1, 0)

    return injected(subject, mixes_rows)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="function", blocked_by=("FUN101", "FUN102"), priority=540)
