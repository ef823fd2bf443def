"""What became of a run where it was resumed: steps made twice, the schedule, and which checkpoint it came from."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.saved_checkpoints import logged_saves
from nsa_doctor.artifacts.training_run.sessions import Session, is_step, sessions_of

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
    sessions = sessions_of(record)
    found = []
    for number, (earlier, session) in enumerate(_resumes(sessions), start=1):
        kinds = (
            _older(record, earlier, session, number),
            _count_anew(earlier, session, number),
            _rates(record, earlier, session, number),
            _losses(record, earlier, session, number),
        )
        found += [each for each in kinds if each is not None][:1]
    return found


def num_resumes(record: RunRecord) -> int:
    """How often a run went on from an earlier session."""
    return sum(1 for _ in _resumes(sessions_of(record)))


def _resumes(sessions: Sequence[Session]) -> list[tuple[list[Session], Session]]:
    """(all sessions before, a session that goes on from them): one that says so, or whose steps lie among theirs.

    A session that begins where the log began is another run, or another epoch that counts its own steps.
    """
    found = []
    for index, session in enumerate(sessions):
        earlier = [each for each in sessions[:index] if each.steps]
        if not earlier or not session.steps:
            continue
        first, begin = session.steps[0].step or 0, min(each.steps[0].step or 0 for each in earlier)
        if session.is_resumed or first > begin:
            found.append((earlier, session))
    return found


def _older(record: RunRecord, earlier: Sequence[Session], session: Session, number: int) -> Detour | None:
    """A resume from a checkpoint before the newest that was saved, unless that one was set aside as unreadable."""
    if session.resumed_from is None:
        return None
    before = [beat for each in earlier for beat in each.beats]
    logged = [step for step in logged_saves(_with(record, before)) if step > session.resumed_from]
    aside = {each.step for each in record.saved if each.fault.startswith("was set aside")}
    lost = [step for step in logged if step not in aside]
    if not lost:
        return None
    return Detour(
        kind="older checkpoint", resume=number, step=session.resumed_from, before=max(lost), after=session.resumed_from
    )


def _count_anew(earlier: Sequence[Session], session: Session, number: int) -> Detour | None:
    """Steps that do not go on from where the resume says it did."""
    first, begin = session.steps[0].step or 0, min(each.steps[0].step or 0 for each in earlier)
    if session.resumed_from is None or session.resumed_from <= begin or first > session.resumed_from:
        return None
    stride = _stride(session)
    if first + stride > session.resumed_from:  # a log that tells the step it resumed from again
        return None
    return Detour(
        kind="step count restarts", resume=number, step=first, before=session.resumed_from + stride, after=first
    )


def _rates(record: RunRecord, earlier: Sequence[Session], session: Session, number: int) -> Detour | None:
    """A rate that differs from the one the same step had, or that begins its warm-up again."""
    old, new = _logged(earlier, "learning_rate"), _logged([session], "learning_rate")
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


def _losses(record: RunRecord, earlier: Sequence[Session], session: Session, number: int) -> Detour | None:
    """Losses of steps that were made twice and are not the same."""
    old, new = _logged(earlier, "loss"), _logged([session], "loss")
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


def _logged(sessions: Sequence[Session], quantity: Literal["loss", "learning_rate"]) -> dict[int, float]:
    """By step, what was last logged."""
    beats = (beat for session in sessions for beat in session.steps)
    return {
        beat.step: value for beat in beats if beat.step is not None and (value := getattr(beat, quantity)) is not None
    }


def _stride(session: Session) -> int:
    steps = [beat.step for beat in session.beats if is_step(beat) and beat.step is not None]
    return max(1, min((b - a for a, b in itertools.pairwise(steps) if b > a), default=1))


def _is_same_rate(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_RATE * max(abs(one), abs(other))


def _is_near(one: float, other: float) -> bool:
    small, large = sorted((abs(one), abs(other)))
    return large <= _JUMP * small


def _with(record: RunRecord, beats: Sequence[Beat]) -> RunRecord:
    return RunRecord(folder=record.folder, beats=tuple(beats))
