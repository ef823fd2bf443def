"""Which line's memory grows faster with the length than a method allows."""

from collections.abc import Sequence
from dataclasses import dataclass

from nsa_doctor.core.growth import least_exponent
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import short_bytes
from nsa_doctor.probes.cost.alive import Peak

_MARGIN = 0.25  # half way between exponents that methods have: 1.5 and 2
_LEAST_SHARE = 0.25  # of the peak; what grows fastest and is still small may be a mask, or a tile not yet full


@dataclass(frozen=True)
class LineGrowth:
    """Where it is, by which power of the length its memory grows, and the share of the peak of all such lines."""

    place: Place
    exponent: float
    share: float


def fastest_growing(peaks: Sequence[Peak], allowed: float) -> LineGrowth | None:
    """The line whose memory grows faster than allowed and is largest; None where such lines are little of the peak."""
    lengths, last = [peak.length for peak in peaks], peaks[-1]
    exponents = {
        place: least_exponent(lengths, [peak.by_place.get(place, 0) for peak in peaks]) for place in last.by_place
    }
    growing = [place for place, exponent in exponents.items() if exponent > allowed + _MARGIN]
    share = sum(last.by_place[place] for place in growing) / max(1, last.bytes)
    if share < _LEAST_SHARE:
        return None
    worst = max(growing, key=lambda place: last.by_place[place])
    return LineGrowth(worst, exponents[worst], share)


def sizes(peaks: Sequence[Peak], place: Place) -> str:
    """What a line holds at the last three lengths, in words."""
    return ", ".join(f"{short_bytes(peak.by_place.get(place, 0))} at S={peak.length}" for peak in peaks[-3:])
