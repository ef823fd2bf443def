"""FUN306 queries-without-keys-go-wrong

Detects: a query that may read no key whose output or gradient is not finite or was not written, or that disturbs other
rows: under a mask that hides all, before the first key, in a sequence or a cache row without keys.
Matters: one padded row of a batch makes the gradient of every weight NaN.
Fix: keep the subtracted maximum finite, divide by 1 where the sum is 0, write zeros.

Example:
    # faulty
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))  # -inf less -inf
    # correct
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).clamp_min(-1e30))
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import conditions, found, injected, require_spec
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.keyless import keyless
from nsa_doctor.probes.functions.measured import measured
from nsa_doctor.subject.function import FunctionSubject

_LENGTH = 43


def run(subject: FunctionSubject) -> Iterator[Finding]:
    require_spec(subject)
    shape = shapes.at_length(subject, _LENGTH)
    plain = measured(subject, shape)
    if not plain.is_forward_right:
        return
    reported: set[str] = set()
    for each in keyless(subject, shape):
        if each.tensor not in reported:
            reported.add(each.tensor)
            message = f"{each.what}: {each.rows} {conditions(subject, each.problem)}"
            evidence = {"tensor": each.tensor, "target": each.tensor, "property": each.what}
            is_backward = each.tensor.startswith("d")
            yield found(subject, "FUN306", message, each.problem, each.answer, evidence, is_backward, made_in="nan")


def planted(subject: FunctionSubject) -> FunctionSubject:
    def divides_by_nothing(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        is_empty = (out == 0).all(-1, keepdim=True)
        return torch.where(is_empty, torch.nan, out)

    return injected(subject, divides_by_nothing)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN201", "FUN202", "FUN301", "FUN401"),
    priority=526,
)
