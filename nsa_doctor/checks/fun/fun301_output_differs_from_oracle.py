"""FUN301 output-differs-from-oracle

Detects: an output, or a log of the sum of exponentials, that is not what the declared spec gives in float64: at any
edge of a tile, with other numbers of queries than of keys, at sizes drawn at random.
Matters: a wrong scale, a dropped key or a sum in too few bits gives a model that trains, to a worse loss.
Fix: begin at the shape named with the smallest S, and compare the tile of the row named with plain torch.

Example:
    # faulty
    tiles = range(0, keys // BLOCK * BLOCK, BLOCK)  # the last, partial tile is left out
    # correct
    tiles = range(0, keys, BLOCK)
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from nsa_doctor.checks._shared.of_function import differs, injected, require_spec
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.measured import FORWARD, measured
from nsa_doctor.subject.function import FunctionSubject, Shape


def run(subject: FunctionSubject) -> Iterator[Finding]:
    require_spec(subject)
    reported: set[str] = set()
    right: list[Shape] = []
    for shape in shapes.every(subject):
        result = measured(subject, shape)
        wrong = [excess for name in FORWARD if (excess := result.excess(name)) is not None]
        if not wrong and "out" in result.answer.tensors:
            right.append(shape)
        for excess in wrong[:1]:
            if excess.tensor not in reported:
                reported.add(excess.tensor)
                control = f"right at {right[-1]}" if right else ""
                yield differs(subject, "FUN301", result.problem, excess, result.answer, control)


def planted(subject: FunctionSubject) -> FunctionSubject:
    def a_percent_more(*positional: Any, **keywords: Any) -> Any:
        result = subject.function(*positional, **keywords)
        return (result if isinstance(result, Tensor) else result[0]) * 1.01

    return injected(subject, a_percent_more)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    profile="smoke",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN201", "FUN202"),
)
