"""What a series of a training run does beneath its noise: levels of stretches, how sure they are, whether it trends.

Numbers that every check shares. A stretch stands for its median, so that a few outliers move nothing. The noise of one
point is measured inside the stretches and never assumed; points that follow each other closely count for fewer.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord

Quantity = Literal["loss", "learning_rate", "grad_norm", "tokens_per_second", "fetch_seconds", "memory", "ts"]
_MAD_TO_SIGMA = 1.4826  # of normal noise
_MEDIAN_TO_MEAN = 1.2533  # how much wider a median's error is than a mean's, for normal noise
_MOST_POINTS = 20_000  # of a series; medians of more say nothing else
_LARGEST = 1e150  # whose squares can be added up
_NO_STEPS = ("eval", "valid", "test", "not finite")  # what lines of a looking-aside or of a refusal begin with


@dataclass(frozen=True)
class Series:
    """Values at ascending steps; all are finite."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def span(self) -> int:
        """Steps from the first to the last, both counted."""
        return self.steps[-1] - self.steps[0] + 1 if self.steps else 0

    def part(self, first: int, last: int | None = None) -> "Series":
        """Points by index, as a slice takes them."""
        return Series(self.steps[first:last], self.values[first:last])

    def within(self, first: int, last: float = math.inf) -> "Series":
        """Points by step, both ends counted."""
        points = [point for point in zip(self.steps, self.values, strict=True) if first <= point[0] <= last]
        return Series(tuple(step for step, _ in points), tuple(value for _, value in points))

    @property
    def steps_text(self) -> str:
        """`steps 1 to 80`."""
        return f"steps {self.steps[0]} to {self.steps[-1]}" if self.steps else "no step"


@dataclass(frozen=True)
class Levels:
    """Medians of equal stretches; `noise` is the spread of one point about its stretch, `error` that of a median."""

    stretches: tuple[Series, ...]
    values: tuple[float, ...]
    noise: float
    error: float

    @property
    def lowest(self) -> int:
        """The index of the lowest level."""
        return min(range(len(self.values)), key=self.values.__getitem__)


def timeline(record: RunRecord) -> tuple[Beat, ...]:
    """The steps of the first process as they stand: what a later session made again replaces what was lost."""
    rank = min(record.ranks, default=0)
    return record.once("timeline", rank, lambda: _timeline(record, rank))


def _timeline(record: RunRecord, rank: int) -> tuple[Beat, ...]:
    own = [
        beat
        for beat in record.beats
        if beat.rank == rank and beat.step is not None and not beat.msg.lower().startswith(_NO_STEPS) and _tells(beat)
    ]
    kept: list[Beat] = []
    steps: list[int] = []
    for index, beat in enumerate(own):
        step = beat.step
        assert step is not None
        if kept and step <= steps[-1]:
            follower = own[index + 1].step if index + 1 < len(own) else None
            if follower is not None and follower > steps[-1] > step + 1:
                continue  # a stray line: the run goes on as if it were not there
            while kept and steps[-1] >= step:
                kept.pop()
                steps.pop()
        kept.append(beat)
        steps.append(step)
    return tuple(kept)


def series(beats: Sequence[Beat], quantity: Quantity) -> Series:
    """The finite values of one quantity, none beyond 1e150; of a very long series, evenly spaced ones."""
    value_of = attrgetter(quantity)
    points = [
        (beat.step, value)
        for beat in beats
        if (value := value_of(beat)) is not None and beat.step is not None and math.isfinite(value)
    ]
    stride = -(-len(points) // _MOST_POINTS) or 1
    points = points[len(points) - 1 :: -stride][::-1] if stride > 1 else points
    return Series(tuple(step for step, _ in points), tuple(min(max(value, -_LARGEST), _LARGEST) for _, value in points))


def levels(of: Series, count: int, fewest: int = 4) -> Levels:
    """Medians of `count` equal stretches, fewer where each would have less than `fewest` points."""
    count = max(1, min(count, len(of) // fewest))
    size, over = divmod(len(of), count)
    bounds = list(itertools.accumulate((size + (index < over) for index in range(count)), initial=0))
    stretches = tuple(of.part(first, last) for first, last in itertools.pairwise(bounds))
    medians = tuple(statistics.median(each.values) for each in stretches)
    spread = noise(of.values)
    worth = max(1.0, size * _independence(stretches, medians))
    return Levels(stretches, medians, spread, _MEDIAN_TO_MEAN * spread / math.sqrt(worth))


def noise(values: Sequence[float]) -> float:
    """How far one point strays from its neighbours, as the standard deviation of normal noise; trends do not count."""
    bends = [
        middle - (before + after) / 2 for before, middle, after in zip(values, values[1:], values[2:], strict=False)
    ]
    if not bends:
        return 0.0
    return _MAD_TO_SIGMA * statistics.median(abs(bend) for bend in bends) / math.sqrt(1.5)


def rank_correlation(values: Sequence[float]) -> float:
    """Kendall's tau with time: 1 rises all the way, -1 falls, 0 neither; of at most 60 medians of neighbours."""
    size = -(-len(values) // 60) or 1
    thin = [statistics.median(values[first : first + size]) for first in range(0, len(values), size)]
    pairs = list(itertools.combinations(thin, 2))
    return sum((after > before) - (after < before) for before, after in pairs) / len(pairs) if pairs else 0.0


def travelled(beats: Sequence[Beat]) -> float | None:
    """The sum of the learning rates of all steps: about how far an optimizer like Adam can have moved a weight.

    None where rates are not logged. A line every so many steps stands for those before it.
    """
    rates = series(beats, "learning_rate")
    if not rates:
        return None
    gaps = [1, *(after - before for before, after in itertools.pairwise(rates.steps))]
    return math.fsum(gap * max(rate, 0.0) for gap, rate in zip(gaps, rates.values, strict=True))


def median(values: Iterable[float]) -> float:
    """NaN of none."""
    found = list(values)
    return statistics.median(found) if found else math.nan


def _tells(beat: Beat) -> bool:
    return beat.loss is not None or beat.learning_rate is not None or beat.grad_norm is not None


def _independence(stretches: Sequence[Series], medians: Sequence[float]) -> float:
    """The share of points that count: (1 - r) / (1 + r), r how alike neighbours are beside the trend of a stretch."""
    pairs: list[tuple[float, float]] = []
    for stretch, level in zip(stretches, medians, strict=True):
        half = len(stretch) // 2
        slope = median(stretch.values[half:]) - median(stretch.values[:half]) if half > 1 else 0.0
        away = [
            value - level - slope * (2 * index / max(1, len(stretch) - 1) - 1)
            for index, value in enumerate(stretch.values)
        ]
        pairs += itertools.pairwise(away)
    total = math.fsum(before * before for before, _ in pairs)
    alike = math.fsum(before * after for before, after in pairs) / total if total > 0 else 0.0
    alike = min(max(alike, 0.0), 0.95)
    return (1 - alike) / (1 + alike)
