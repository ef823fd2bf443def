"""Which points a run sweeps: a few, more, or every length at which the geometry changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from nsa_doctor.core.check import Profile
from nsa_doctor.core.lengths import evenly
from nsa_doctor.core.measurement import VALUES, Point
from nsa_doctor.core.pace import SHORT, Pace
from nsa_doctor.engine.measure_points import points

_NUM_LENGTHS: Mapping[Profile, int] = {"smoke": 5, "quick": 14, "full": 1 << 16}
_NUM_FOR_VALUES: Mapping[Profile, int] = {"smoke": 0, "quick": 2, "full": 6}
_LONGEST_FOR_VALUES: Mapping[Profile, int] = {"smoke": 0, "quick": 520, "full": 1 << 24}
_DEAR = 1100
_UNLUCKY = (1, 512, 128, 2, 2048, 1024, 64, 257)  # one token, whole blocks of every usual size, a prime


def sweep_points(profile: Profile, facts: Mapping[str, Any], pace: Pace | None = None) -> list[Point]:
    """Ordinary input in every mode, then unusual values and low precision at a few of the lengths, in training.

    Where lengths were asked for, ordinary input at those alone; at a slow `pace`, ordinary input at a few lengths, and
    the rest at short ones, as far as there is time for it.
    """
    lengths: Sequence[int] = facts["boundaries"] or facts["spread"]
    modes, own = facts["modes"], facts["dtype"]
    if facts.get("lengths"):
        return points(facts["lengths"], (own,), modes)
    chosen = _chosen(lengths, _NUM_LENGTHS[profile] if pace is None else pace.num_lengths)
    found = points(chosen, (own,), modes)
    count = _NUM_FOR_VALUES[profile]
    if pace is not None:
        count, chosen = (
            min(count, pace.num_for_values),
            [each for each in lengths if each <= SHORT] or list(lengths[:1]),
        )
    if count:
        few = evenly([length for length in chosen if 2 < length <= _LONGEST_FOR_VALUES[profile]] or chosen, count)
        strange = tuple(value for value in VALUES if value != "normal")
        found += points(few, (own,), modes[:1], strange)
        if own != "bfloat16":
            found += points(few, ("bfloat16",), modes[:1])
        if own != "float16":  # gradients that overflow in it are what loss scaling is for
            found += points(few, ("float16",), modes[-1:])
    return found


def _chosen(lengths: Sequence[int], count: int) -> list[int]:
    """At most `count` of them: the largest, those at which most code breaks, and others evenly between.

    Of those that are picked for their place alone, the dearest are left out while there are others: where time grows
    with the square of the length, one at the end costs as much as all below the middle.
    """
    first = [length for length in (lengths[-1], *_UNLUCKY) if length in lengths][:count]
    others = [length for length in lengths if length not in first]
    cheap = [length for length in others if length <= max(_DEAR, lengths[-1] // 2)]
    return sorted({*first, *evenly(cheap if len(cheap) >= count else others, count - len(set(first)))})
