"""How long the steps of a run take, and whether they take ever longer.

A neighbour on the same machine slows single steps, or all of a while; it never makes them faster. A stretch stands for
its fast quarter, and what slows has to do so from stretch to stretch all along, or many times over and for good.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.trends import Series, levels, median, series

_STRETCHES, _STRETCHES_OF_FEW, _FEW = 8, 5, 64
_LEFT_OUT = 3  # steps at the start: caches, compilers, first batches
_SHARE_LEFT_OUT = 0.05
_ALL_BUT = 1  # of the seven times that a stretch follows another, it may once be no slower
_LEAST_STEADY = 1.4
_LEAST_STEADY_OF_SHORT, _SHORT_SECONDS = 6.0, 60.0  # in so little time a machine that gets busy looks alike
_ABOVE, _BELOW = 0.15, 0.35  # of all that is lost, from a straight line: a neighbour that comes and stays bends it
_LARGEST_JUMP = 0.55  # of all that is lost: more in one place is a neighbour that came
_LEAST_SUDDEN, _SUDDEN_SHARE, _SUDDEN_SECONDS = 4.0, 0.25, 60.0


@dataclass(frozen=True)
class Costs:
    """Seconds for a token or a step, by step; `seconds` is how long the run lasted; for ever if it says no times."""

    costs: Series
    unit: str
    seconds: float


@dataclass(frozen=True)
class Slowing:
    """From `before` seconds for one to `after`."""

    early: Series
    late: Series
    before: float
    after: float
    unit: str
    is_steady: bool


def costs(beats: Sequence[Beat]) -> Costs:
    """By the tokens a second that are logged, else by the times of the heartbeats; the first steps left out."""
    speeds, times = series(beats, "tokens_per_second"), series(beats, "ts")
    lasted = max(times.values) - min(times.values) if times else math.inf
    points = [(step, 1 / value) for step, value in zip(speeds.steps, speeds.values, strict=True) if value > 0]
    if not points:
        pairs = itertools.pairwise(zip(times.steps, times.values, strict=True))
        points = [(step, (now - then) / (step - start)) for (start, then), (step, now) in pairs if now > then]
    points = points[max(_LEFT_OUT, math.ceil(_SHARE_LEFT_OUT * len(points))) :]
    measured = Series(tuple(step for step, _ in points), tuple(cost for _, cost in points))
    return Costs(measured, "tokens" if speeds else "steps", lasted)


def slowing(of: Costs) -> Slowing | None:
    """How much slower the end is than the start, None where nothing follows from it."""
    count = _STRETCHES if len(of.costs) >= _FEW else _STRETCHES_OF_FEW
    stretches = levels(of.costs, count).stretches
    fast = [_fast(each.values) for each in stretches]
    rises = [after - before for before, after in itertools.pairwise(fast)]
    lost = fast[-1] - fast[0]
    is_steady = (
        len(fast) == count
        and fast[-1] >= (_LEAST_STEADY if of.seconds >= _SHORT_SECONDS else _LEAST_STEADY_OF_SHORT) * fast[0]
        and sum(rise > 0 for rise in rises) >= len(rises) - _ALL_BUT
        and max(rises) <= _LARGEST_JUMP * lost
        and _is_straight(fast)
        and min(stretches[-1].values) > median(stretches[0].values)
    )
    if is_steady:
        return Slowing(stretches[0], stretches[-1], fast[0], fast[-1], of.unit, is_steady=True)
    cut = math.ceil(len(of.costs) * (1 - _SUDDEN_SHARE))
    early, late = of.costs.part(0, cut), of.costs.part(cut)
    before, after = median(early.values), _fast(late.values)
    if after >= _LEAST_SUDDEN * before and of.seconds * _SUDDEN_SHARE >= _SUDDEN_SECONDS:
        return Slowing(early, late, before, after, of.unit, is_steady=False)
    return None


def _is_straight(fast: Sequence[float]) -> bool:
    """Whether costs go up as a line, or ever faster."""
    lost = fast[-1] - fast[0]
    away = [(cost - fast[0]) / lost - index / (len(fast) - 1) for index, cost in enumerate(fast)]
    return max(away) <= _ABOVE and min(away) >= -_BELOW


def _fast(values: Sequence[float]) -> float:
    """The median of the faster half."""
    ordered = sorted(values)
    return median(ordered[: max(1, len(ordered) // 2)])
