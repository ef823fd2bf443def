"""Whether a positive quantity has grown by orders of magnitude and stays there, and whether one point stands out."""

from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.trends import Series, levels, median

_STRETCHES = 12
_FEWEST_LATE = 10
_AROUND = 10  # points before and after one that stands out
_STANDS_OUT = 30.0
_LEAST_LATE = 1000.0


@dataclass(frozen=True)
class Growth:
    """From `before`, the level of `calm`, to `after`, the lowest level of `wild`, which reaches to the end."""

    calm: Series
    wild: Series
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times."""
        return self.after / self.before


def grown(of: Series) -> Growth | None:
    """The cut in two with the greatest ratio between the lowest level after it and the level before."""
    found = levels(of, _STRETCHES)
    ends = [0]
    for stretch in found.stretches:
        ends.append(ends[-1] + len(stretch))
    cuts = range(2, len(found.values) - 1)
    options = [_growth(of, ends[cut], min(found.values[cut:])) for cut in cuts]
    late = len(of)
    calm = median(of.values[: len(of) // 2])
    while late and of.values[late - 1] > _LEAST_LATE * calm:
        late -= 1
    if calm > 0 and len(of) - late >= _FEWEST_LATE and late:
        options.append(_growth(of, late, median(of.values[late:])))
    known = [each for each in options if each is not None]
    return max(known, key=lambda each: each.ratio, default=None)


def _growth(of: Series, cut: int, after: float) -> Growth | None:
    before = median(of.values[:cut])
    return Growth(of.part(0, cut), of.part(cut), before, after) if before > 0 else None


def spike(of: Series) -> tuple[int, float, float] | None:
    """Step, value and ratio of the point that stands out most from those about it, if any does."""
    best: tuple[float, int] | None = None
    for index in range(_AROUND, len(of)):
        if of.values[index] > of.values[index - 1] and of.values[index] > 0:
            around = (*of.values[index - _AROUND : index], *of.values[index + 1 : index + 1 + _AROUND])
            level = median(around)
            if level > 0 and of.values[index] > _STANDS_OUT * level:
                best = max(best or (0.0, 0), (of.values[index] / level, index))
    return (of.steps[best[1]], of.values[best[1]], best[0]) if best else None
