"""FUN302 hard-values-go-wrong

Detects: an output or a gradient that is wrong on values other than those of a test: scores of -120 or +120, one key
that dominates, a maximum that rises in every tile, magnitudes from 1e-4 to 1e4, equal keys, all values positive.
Matters: such scores come up in training after some thousand steps, and are then called an instability.
Fix: subtract the running maximum before every exponential, begin it at -inf, keep scores and sums in float32.

Example:
    # faulty
    peak = torch.zeros(rows)  # all scores lie below it, and every weight is 0
    # correct
    peak = torch.full((rows,), -torch.inf)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.of_function import differs, injected, require_spec
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.hard_values import draws
from nsa_doctor.probes.functions.measured import measured, measured_problem
from nsa_doctor.probes.functions.problems import given_problem
from nsa_doctor.subject.function import FunctionSubject

_LENGTHS = {"smoke": (75,), "quick": (40, 133), "full": (40, 64, 133, 257)}
_MOST = 3


def run(subject: FunctionSubject) -> Iterator[Finding]:
    require_spec(subject)
    reported: set[str] = set()
    if (given := given_problem(subject)) is not None:
        result = measured_problem(subject, given)
        if (excess := result.first_excess(result.answer.tensors)) is not None:
            reported.add(excess.tensor)
            yield differs(subject, "FUN302", given, excess, result.answer)
    base = replace(shapes.base(subject), batch=1)
    for length in _LENGTHS[subject.profile]:
        shape = shapes.of_length(subject, base, length, length)
        if not measured(subject, shape).is_forward_right:
            continue
        for draw in draws():
            result = measured(subject, shape, draw)
            excess = result.first_excess(result.answer.tensors)
            if excess is not None and excess.tensor not in reported and len(reported) < _MOST:
                reported.add(excess.tensor)
                control = "right on normal values of that shape"
                wrong = result.wrong_gradients(result.answer.tensors)
                yield differs(subject, "FUN302", result.problem, excess, result.answer, control, wrong)


def planted(subject: FunctionSubject) -> FunctionSubject:
    def overflows(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        out = result if isinstance(result, Tensor) else result[0]
        q = next(each for each in positional if isinstance(each, Tensor))
        return out + 0 * torch.exp(q.abs().amax().float() * 5)

    return injected(subject, overflows)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN201", "FUN202", "FUN301", "FUN401"),
    priority=520,
)
