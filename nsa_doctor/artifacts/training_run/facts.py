"""A run's facts as a report carries them: series to draw, silences, numbers, names."""

import itertools
import math
from typing import Any

from nsa_doctor.artifacts.training_run.numbers import is_time, numbers_of
from nsa_doctor.artifacts.training_run.record import RunRecord

_MOST_POINTS = 5_000
_MOST_SILENCES = 2_000  # more than a picture has columns
_MOST_NAMES = 200


def facts_of(run: RunRecord) -> dict[str, Any]:
    """Plain data; a series longer than a picture can show keeps evenly spaced points and every loss not finite."""
    own = [beat for beat in run.beats if beat.rank == 0]
    stride = max(1, len(own) // _MOST_POINTS)
    kept = [beat for index, beat in enumerate(own) if index % stride == 0 or _is_not_finite(beat.loss)]
    names = ("ts", "step", "loss", "tokens_per_second", "memory")
    return {
        "folder": run.folder,
        "device_name": run.device_name,
        "series": {name: [getattr(beat, name) for beat in kept] for name in names},
        "silences": _silences(run),
        "numbers": numbers_of(run),
        "watchdog_dumps": list(run.watchdog_dumps[:_MOST_NAMES]),
        "checkpoints": list(run.checkpoints[:_MOST_NAMES]),
    }


def _silences(run: RunRecord) -> list[list[float]]:
    """The times between heartbeats of rank 0 as (from, seconds): all of them, or the longest of each stretch."""
    times = [beat.ts for beat in run.beats if beat.rank == 0 and is_time(beat.ts)]
    gaps = [[before, after - before] for before, after in itertools.pairwise(times) if after > before]
    if len(gaps) <= _MOST_SILENCES:
        return sorted(gaps)
    start, span = min(times), max(times) - min(times)
    longest: dict[int, list[float]] = {}
    for gap in gaps:
        stretch = int((gap[0] - start) / span * _MOST_SILENCES)
        longest[stretch] = max(gap, longest.get(stretch, gap), key=lambda each: each[1])
    return sorted(longest.values())


def _is_not_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
