"""How fast something grows with the number of tokens: exponents between lengths, and over all of them with a margin."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

# Two-sided 95 % of Student's t by degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

_ROOM_OF_THIRD = 4.0


class Sized(Protocol):
    """What was measured at one length."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        ...


_Measured = TypeVar("_Measured", bound=Sized)


@dataclass(frozen=True)
class Exponent:
    """The slope of log y over log x by least squares, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def fitted_exponent(lengths: Sequence[int], amounts: Sequence[float]) -> Exponent | None:
    """The exponent over all lengths; None for fewer than three or where something is zero."""
    if len(lengths) < 3 or min(amounts) <= 0:
        return None
    x, y = [math.log(length) for length in lengths], [math.log(amount) for amount in amounts]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    freedom = len(x) - 2
    margin = _STUDENT[min(freedom, len(_STUDENT)) - 1] * math.sqrt(left / freedom / spread)
    return Exponent(slope, slope - margin, slope + margin)


def least_exponent(lengths: Sequence[int], amounts: Sequence[float], last: int = 2) -> float:
    """The least exponent between neighbours among the last few lengths; -inf where there are too few or one is zero."""
    pairs = list(pairwise(zip(lengths, amounts, strict=True)))[-last:]
    if len(pairs) < last or any(low <= 0 or high <= 0 for (_, low), (_, high) in pairs):
        return -math.inf
    return min(math.log(high / low, longer / shorter) for (shorter, low), (longer, high) in pairs)


def doubling(longest: int, count: int) -> list[int]:
    """Up to `count` lengths, ascending, each twice the one before; the last is the longest."""
    lengths = [max(1, longest >> step) for step in range(count)]
    return sorted(set(lengths))


def ladder(
    lengths: Sequence[int],
    measure: Callable[[int], _Measured],
    costs: Callable[[_Measured], Sequence[tuple[float, float]]],
) -> list[_Measured]:
    """Measure ascending lengths, until one more would exceed a limit if things went on growing as they do.

    costs: (amount, limit) of each thing that is limited. The third length, without which no exponent is known, may
    exceed it four times: what is short yet grows faster than it does later, as within the first chunk.
    """
    found: list[_Measured] = []

    def costs_of_third(measured: _Measured) -> Sequence[tuple[float, float]]:
        return [(amount, _ROOM_OF_THIRD * limit) for amount, limit in costs(measured)]

    for length in lengths:
        allowed = costs_of_third if len(found) == 2 else costs
        if len(found) > 1 and not is_affordable(found[-2], found[-1], length, allowed):
            break
        found.append(measure(length))
    return found


def is_stretched(found: Sequence[_Measured], costs: Callable[[_Measured], Sequence[tuple[float, float]]]) -> bool:
    """Whether a ladder has its third length by exceeding a limit: tokens so few may all lie in one chunk."""
    return len(found) == 3 and not is_affordable(found[0], found[1], found[2].length, costs)


def is_affordable(
    shorter: _Measured, longer: _Measured, length: int, costs: Callable[[_Measured], Sequence[tuple[float, float]]]
) -> bool:
    """Whether `length` stays within every limit, if things go on growing as they do between the two measured."""
    for (low, _), (high, limit) in zip(costs(shorter), costs(longer), strict=True):
        grown = math.log(max(high, 1e-9) / max(low, 1e-9), longer.length / shorter.length)
        if high * (length / longer.length) ** max(0.0, grown) > limit:
            return False
    return True
