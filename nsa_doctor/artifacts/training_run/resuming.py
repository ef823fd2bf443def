"""What became of a run where it was resumed: steps made twice, the schedule, and which checkpoint it came from."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.saved_checkpoints import logged_saves
from nsa_doctor.artifacts.training_run.sessions import Life, is_step, lives_of

_BIT_FOR_BIT = 1e-6  # of one process on a CPU, at the first step made again; it doubles with each
_BY_TOLERANCE = 5e-3
_MOST_DOUBLINGS = 12
_FEWEST_TWICE = 3
_OF_THE_NOISE = 4.0
_SHARE_OF_LOSS = 0.05
_SAME_RATE = 1e-3
_JUMP = 2.0


@dataclass(frozen=True, kw_only=True)
class Detour:
    """One thing that a resume changed, at a step; `before` and `after` are the two numbers."""

    kind: Literal["another loss", "another rate", "step count restarts", "rate restarts", "older checkpoint"]
    resume: int
    step: int
    before: float
    after: float


def detours(record: RunRecord) -> list[Detour]:
    """Every resume's gravest detour: where it came from, its steps, its rates, its losses, in this order."""
    lives = lives_of(record)
    found = []
    for number, (earlier, life) in enumerate(_resumes(lives), start=1):
        kinds = (
            _older(record, earlier, life, number),
            _count_anew(earlier, life, number),
            _rates(record, earlier, life, number),
            _losses(record, earlier, life, number),
        )
        found += [each for each in kinds if each is not None][:1]
    return found


def num_resumes(record: RunRecord) -> int:
    """How often a run went on from an earlier life."""
    return sum(1 for _ in _resumes(lives_of(record)))


def _resumes(lives: Sequence[Life]) -> list[tuple[list[Life], Life]]:
    """(all lives before, a life that goes on from them): one that says so, or whose steps lie among theirs.

    A life that begins where the log began is another run, or another epoch that counts its own steps.
    """
    found = []
    for index, life in enumerate(lives):
        earlier = [each for each in lives[:index] if each.steps]
        if not earlier or not life.steps:
            continue
        first, begin = life.steps[0].step or 0, min(each.steps[0].step or 0 for each in earlier)
        if life.is_resumed or first > begin:
            found.append((earlier, life))
    return found


def _older(record: RunRecord, earlier: Sequence[Life], life: Life, number: int) -> Detour | None:
    """A resume from a checkpoint before the newest that was saved, unless that one was set aside as unreadable."""
    if life.resumed_from is None:
        return None
    before = [beat for each in earlier for beat in each.beats]
    logged = [step for step in logged_saves(_with(record, before)) if step > life.resumed_from]
    aside = {each.step for each in record.saved if each.fault.startswith("was set aside")}
    lost = [step for step in logged if step not in aside]
    if not lost:
        return None
    return Detour(
        kind="older checkpoint", resume=number, step=life.resumed_from, before=max(lost), after=life.resumed_from
    )


def _count_anew(earlier: Sequence[Life], life: Life, number: int) -> Detour | None:
    """Steps that do not go on from where the resume says it did."""
    first, begin = life.steps[0].step or 0, min(each.steps[0].step or 0 for each in earlier)
    if life.resumed_from is None or life.resumed_from <= begin or first > life.resumed_from:
        return None
    stride = _stride(life)
    if first + stride > life.resumed_from:  # a log that tells the step it resumed from again
        return None
    return Detour(kind="step count restarts", resume=number, step=first, before=life.resumed_from + stride, after=first)


def _rates(record: RunRecord, earlier: Sequence[Life], life: Life, number: int) -> Detour | None:
    """A rate that differs from the one the same step had, or that begins its warm-up again."""
    old, new = _logged(earlier, "learning_rate"), _logged([life], "learning_rate")
    both = [(step, old[step], new[step]) for step in sorted(old.keys() & new.keys())]
    first_rates = list(new.values())[:_FEWEST_TWICE]
    if not first_rates or not old:
        return None
    start = [old[step] for step in sorted(old)[:_FEWEST_TWICE]]
    is_anew = len(start) == len(first_rates) == _FEWEST_TWICE and all(map(_is_same_rate, start, first_rates))
    step = min(new)
    last = [old[each] for each in sorted(old) if each <= step][-1:]
    if is_anew and last and not _is_near(last[0], first_rates[0]):
        return Detour(kind="rate restarts", resume=number, step=step, before=last[0], after=first_rates[0])
    if not record.is_own:
        return None
    different = next((each for each in both if not _is_same_rate(each[1], each[2])), None)
    if different is None:
        return None
    return Detour(kind="another rate", resume=number, step=different[0], before=different[1], after=different[2])


def _losses(record: RunRecord, earlier: Sequence[Life], life: Life, number: int) -> Detour | None:
    """Losses of steps that were made twice and are not the same."""
    old, new = _logged(earlier, "loss"), _logged([life], "loss")
    both = [(step, old[step], new[step]) for step in sorted(old.keys() & new.keys())]
    if not both:
        return None
    if not record.is_own:
        return _systematic(old, both, number)
    runtime = record.configuration.get("runtime")
    is_cpu = record.environment.get("device") == "cpu" and record.world_size == 1
    is_whole = not isinstance(runtime, dict) or runtime.get("precision", "fp32") == "fp32"
    base = _BIT_FOR_BIT if is_cpu and is_whole else _BY_TOLERANCE
    for place, (step, one, other) in enumerate(both):
        bound = base * 2 ** min(place, _MOST_DOUBLINGS) * max(abs(one), abs(other))
        if not abs(one - other) <= bound and (math.isfinite(one) or math.isfinite(other)):
            return Detour(kind="another loss", resume=number, step=step, before=one, after=other)
    return None


def _systematic(old: Mapping[int, float], both: Sequence[tuple[int, float, float]], number: int) -> Detour | None:
    """Of a trainer that may draw other batches: losses that are higher than before by more than batches differ."""
    finite = [each for each in both if math.isfinite(each[1]) and math.isfinite(each[2])]
    if len(finite) < _FEWEST_TWICE:
        return None
    values = [old[step] for step in sorted(old) if math.isfinite(old[step])]
    changes = [abs(b - a) for a, b in itertools.pairwise(values)]
    noise = statistics.median(changes) if changes else 0.0
    rise = statistics.fmean(new - one for _, one, new in finite)
    level = statistics.fmean(abs(one) for _, one, _ in finite)
    if rise > _OF_THE_NOISE * noise and rise > _SHARE_OF_LOSS * level:
        step, one, new = max(finite, key=lambda each: each[2] - each[1])
        return Detour(kind="another loss", resume=number, step=step, before=one, after=new)
    return None


def _logged(lives: Sequence[Life], quantity: Literal["loss", "learning_rate"]) -> dict[int, float]:
    """By step, what was last logged."""
    beats = (beat for life in lives for beat in life.steps)
    return {
        beat.step: value for beat in beats if beat.step is not None and (value := getattr(beat, quantity)) is not None
    }


def _stride(life: Life) -> int:
    steps = [beat.step for beat in life.beats if is_step(beat) and beat.step is not None]
    return max(1, min((b - a for a, b in itertools.pairwise(steps) if b > a), default=1))


def _is_same_rate(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_RATE * max(abs(one), abs(other))


def _is_near(one: float, other: float) -> bool:
    small, large = sorted((abs(one), abs(other)))
    return large <= _JUMP * small


def _with(record: RunRecord, beats: Sequence[Beat]) -> RunRecord:
    return RunRecord(folder=record.folder, beats=tuple(beats))
