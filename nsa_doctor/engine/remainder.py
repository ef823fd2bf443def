"""What a first finding leaves to be examined: the modes and lengths in which nothing was wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.measurement import Measurement

_LEAST_LENGTH = 16  # what is shorter shows little
_MOST_AVOIDED = 0.4  # of the lengths: where more are at fault, others of their kind are too


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """Modes, lengths up to a length, and single lengths to pass over."""

    modes: tuple[str, ...]
    max_length: int
    avoided: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{' and '.join(self.modes)} up to S={self.max_length}"


def remainder(measurements: Sequence[Measurement], facts: Mapping[str, Any]) -> Remainder | None:
    """Where the sweep saw nothing wrong with ordinary input in the subject's own dtype; None where little is left."""
    normal = [each for each in measurements if each.point.values == "normal" and each.point.dtype == facts["dtype"]]
    modes = tuple(mode for mode in facts["modes"] if _is_fine(normal, mode))
    if modes:
        return Remainder(modes=modes, max_length=facts["max_length"])
    bad = {each.point.length for each in normal if not each.is_finite}
    good = {each.point.length for each in normal} - bad
    if not good or not bad or max(good) < _LEAST_LENGTH:
        return None
    every = tuple(facts["modes"])
    if max(good) < min(bad):
        return Remainder(modes=every, max_length=max(good))
    if max(bad) < min(good):  # what is too short
        return Remainder(modes=every, max_length=facts["max_length"], avoided=tuple(range(1, max(bad) + 1)))
    if len(bad) <= _MOST_AVOIDED * len(good | bad):
        return Remainder(modes=every, max_length=facts["max_length"], avoided=tuple(sorted(bad)))
    return None


def _is_fine(measurements: Sequence[Measurement], mode: str) -> bool:
    """Whether the mode was measured, and nothing was wrong in it."""
    own = [each for each in measurements if each.point.mode == mode]
    return bool(own) and all(each.is_finite for each in own)
