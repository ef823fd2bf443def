"""Numbers of a run that a gate may limit; None is what its folder does not show."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from nsa_doctor.artifacts.training_run.record import RunRecord

_SHARE_AT_THE_ENDS = 0.1
_FEWEST_LOSSES = 10
_RESUMED = "resumed"


def numbers_of(run: RunRecord) -> dict[str, float | None]:
    """Every measure of `MEASURES`: rank 0's, but for losses that are not finite, which any rank may have."""
    own = [beat for beat in run.beats if beat.rank == 0]
    losses = [beat.loss for beat in run.steps if beat.loss is not None]
    all_losses = [beat.loss for beat in run.beats if beat.loss is not None]
    speeds = _finite(beat.tokens_per_second for beat in own)
    fetches = [beat.fetch_seconds for beat in own if beat.fetch_seconds is not None]
    memory = _finite(beat.memory for beat in own)
    steps = [beat.step for beat in own if beat.step is not None]
    return {
        "steps": _steps_made(steps),
        "tokens_per_second": statistics.median(speeds[_part(speeds) :]) if speeds else None,
        "loss_ratio": _loss_ratio(losses),
        "nonfinite_losses": float(sum(not math.isfinite(loss) for loss in all_losses)) if all_losses else None,
        "watchdog_dumps": float(len(run.watchdog_dumps)),
        "first_batch_seconds": fetches[0] if fetches else None,
        "longest_silence_seconds": _longest_silence(run),
        "memory_growth": _growth(memory),
        "checkpoints": float(len(run.checkpoints)),
        "resumes": float(_resumes(run)),
    }


def _steps_made(steps: Sequence[int]) -> float | None:
    """From the first heartbeat's to the last, and those before it that it stands for: from 9,998 on few were made."""
    if not steps:
        return None
    strides = [after - before for before, after in itertools.pairwise(sorted(set(steps)))]
    return float(min(max(steps), max(steps) - min(steps) + (statistics.median_low(strides) if strides else 1)))


def is_time(ts: float | None) -> TypeGuard[float]:
    """Whether it says when."""
    return ts is not None and math.isfinite(ts)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _part(values: Sequence[float]) -> int:
    return math.ceil(len(values) * _SHARE_AT_THE_ENDS) if len(values) > 1 else 0


def _loss_ratio(losses: Sequence[float]) -> float | None:
    """Mean of the last tenth over mean of the first, of ten at least; NaN when any of them is not finite."""
    if len(losses) < _FEWEST_LOSSES:
        return None
    count = _part(losses)
    first, last = _mean(losses[:count]), _mean(losses[-count:])
    return last / first if first else math.nan


def _mean(values: Sequence[float]) -> float:
    """NaN when they cannot be added up: too large, or infinities of both signs."""
    try:
        return statistics.fmean(values)
    except (OverflowError, ValueError):
        return math.nan


def _longest_silence(run: RunRecord) -> float | None:
    """The longest gap between two heartbeats of one rank; a process that starts again starts a new clock."""
    gaps: list[float] = []
    for rank in {beat.rank for beat in run.beats}:
        own = [(beat.ts, beat.msg) for beat in run.beats if beat.rank == rank and is_time(beat.ts)]
        gaps += [after - before for (before, _), (after, msg) in itertools.pairwise(own) if not _starts_anew(msg)]
    return max(gaps) if gaps else None


def _growth(memory: Sequence[float]) -> float | None:
    """What the median of the last quarter is above that of the third, as a share of it: a plateau has none."""
    quarter = len(memory) // 4
    if quarter < 2:
        return None
    third, last = statistics.median(memory[-2 * quarter : -quarter]), statistics.median(memory[-quarter:])
    return (last - third) / third if third else (0.0 if not last else math.inf)


def _resumes(run: RunRecord) -> int:
    """Starts from a checkpoint after which a step was made."""
    count, is_open = 0, False
    for beat in (beat for beat in run.beats if beat.rank == 0):
        if _starts_anew(beat.msg) and beat.msg.startswith(_RESUMED):
            is_open = True
        elif is_open and beat.loss is not None:
            count, is_open = count + 1, False
    return count


def _starts_anew(msg: str) -> bool:
    return msg.startswith((_RESUMED, "started"))
