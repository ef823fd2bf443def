"""Whether a loss has risen from its best and stays there; how far, since when, and whether it is coming back."""

from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.trends import Series, levels, median, rank_correlation

_STRETCHES = 12  # about a twelfth of the run is one level, and the last two have to be high: a sixth of the run
_ERRORS = 6.0  # of a level, by which two of a dozen differ by chance in less than one of a million healthy runs
_OF_THE_FALL = 0.15  # another mixture of data, or a restart of the schedule, costs less of what was learnt
_OF_ONE_STEP, _AT_REST = 1.5, 3.0  # drifts of the data are of the size of its noise; all of it, where little falls
_LEAST, _LEAST_IN_ORDER = 0.25, 0.10  # of the level; a small rise counts when it goes up all the way
_LEAST_OF_A_GUESS, _LIKE_A_GUESS = 0.01, 0.97  # a model that knows nothing has nothing to lose by other data
_IN_ORDER = 0.6  # Kendall's tau of levels that go up all the way, but for one or two
_FEWEST_LATE = 12  # points that a late rise needs to be distinguished from a spike
_LATE_NOISE = 12.0
_COMING_BACK = -0.35  # tau of the points since the peak; noise alone of 12 points is below it once in 16
_WON_BACK = 0.3
_FADES = -0.5  # tau of the points since the peak of a spike that fades slowly
_FEWEST_BEYOND, _BEYOND, _STILL_UP = 5, 2.0, 0.7  # points at twice what the run began with do not wait for a dozen
_CLIMBS, _THIRDS = 0.35, 4.0  # tau of 60 points without a trend is above it once in 20,000; errors of a third


@dataclass(frozen=True, kw_only=True)
class Rise:
    """From `lowest`, the level of the stretch `best`, to `now`, that of `late`."""

    best: Series
    late: Series
    lowest: float
    now: float
    noise: float
    is_recovering: bool

    @property
    def sentence(self) -> str:
        """What, how much, where."""
        return (
            f"the loss rises from {self.lowest:.4g} ({self.best.steps_text}) to {self.now:.4g} ({self.late.steps_text})"
        )


def found_rise(losses: Series, guess: float | None = None) -> Rise | None:
    """The rise of a loss that is above its best at the end, None where it is not; `guess` is what a guess loses."""
    return _lasting(losses, guess) or _late(losses) or _climbing(losses, guess)


def _lasting(losses: Series, guess: float | None) -> Rise | None:
    """Every level of the last sixth is high."""
    found = levels(losses, _STRETCHES)
    if len(found.values) < 3:
        return None
    best, values = found.lowest, found.values
    lowest, highest = values[best], max(values[best:])
    late = 2 if len(values) > 4 else 1
    now = min(values[-late:])
    rise, fall = now - lowest, max(values[: best + 1]) - lowest
    is_in_order = rank_correlation(values[best:]) >= _IN_ORDER
    is_a_guess = guess is not None and _LIKE_A_GUESS * guess < lowest < guess / _LIKE_A_GUESS
    in_order = _LEAST_OF_A_GUESS if is_a_guess else _LEAST_IN_ORDER
    least = (in_order if is_in_order else _LEAST) * abs(lowest)
    strays = (_AT_REST if fall < rise and not is_a_guess else _OF_ONE_STEP) * found.noise
    if not rise > max(_ERRORS * found.error, strays, _OF_THE_FALL * fall, least):
        return None
    is_recovering = highest - values[-1] > _WON_BACK * (highest - lowest) and values[-1] <= values[-2] + found.error
    first = sum(len(each) for each in found.stretches[:-late])
    from_best = losses.within(found.stretches[best].steps[-1]).values
    since = from_best[max(range(len(from_best)), key=from_best.__getitem__) :]
    is_recovering = is_recovering or (len(since) >= 6 and rank_correlation(since) < _FADES)
    return Rise(
        best=found.stretches[best],
        late=losses.part(first),
        lowest=lowest,
        now=median(losses.values[first:]),
        noise=found.noise,
        is_recovering=is_recovering and values[-1] < values[0],
    )


def _late(losses: Series) -> Rise | None:
    """The last dozen points and more are far above all that was before."""
    found = levels(losses, _STRETCHES)
    if len(losses) < 3 * _FEWEST_LATE:
        return None
    best = found.lowest
    lowest = found.values[best]
    fall = max(found.values[: best + 1]) - lowest
    limit = lowest + max(_LATE_NOISE * found.noise, 0.5 * fall, 0.25 * abs(lowest))
    first = len(losses)
    while first and losses.values[first - 1] > limit:
        first -= 1
    late = losses.part(first)
    if not late or found.stretches[best].steps[-1] >= late.steps[0]:
        return None
    peak = max(range(len(late)), key=late.values.__getitem__)
    is_beyond = len(late) >= _FEWEST_BEYOND and median(late.values) > _BEYOND * max(found.values[: best + 1])
    if len(late) < _FEWEST_LATE and not (is_beyond and late.values[-1] >= _STILL_UP * late.values[peak]):
        return None
    since = late.values[peak:]
    is_recovering = len(since) > 3 and rank_correlation(since) < _COMING_BACK
    return Rise(
        best=found.stretches[best],
        late=late,
        lowest=lowest,
        now=median(late.values),
        noise=found.noise,
        is_recovering=is_recovering,
    )


def _climbing(losses: Series, guess: float | None) -> Rise | None:
    """A model that knows no more than a guess, and loses more and more, however noisy its steps."""
    thirds = levels(losses, 3)
    first, last = thirds.values[0], thirds.values[-1]
    if guess is None or len(thirds.values) < 3 or not _LIKE_A_GUESS * guess <= first < guess / _LIKE_A_GUESS:
        return None
    if last - first <= _THIRDS * thirds.error or rank_correlation(losses.values) <= _CLIMBS:
        return None
    return Rise(
        best=thirds.stretches[0],
        late=thirds.stretches[-1],
        lowest=first,
        now=last,
        noise=thirds.noise,
        is_recovering=False,
    )
