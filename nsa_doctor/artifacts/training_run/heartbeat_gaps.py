"""How fast a run's heart beats: the gaps between heartbeats of one session, and how long a silence is too long."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.numbers import is_time
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.sessions import Session, is_step

_USUAL_WATCHDOG = 180.0
_LEAST_SILENCE = 10.0
_SECONDS_TO_COMPILE = 1800.0
_TIMES_THE_LONGEST = 3.0


@dataclass(frozen=True)
class Gap:
    """Two heartbeats that follow each other, and what lies between them."""

    before: Beat
    after: Beat
    seconds: float


def gaps_of(session: Session) -> list[Gap]:
    """Between heartbeats that tell a time, in order."""
    timed = [(beat, beat.ts) for beat in session.beats if is_time(beat.ts)]
    return [Gap(a, b, after - before) for (a, before), (b, after) in itertools.pairwise(timed) if after >= before]


def seconds_between(session: Session) -> list[float]:
    """How long each of those gaps is."""
    times = [beat.ts for beat in session.beats if is_time(beat.ts)]
    return [after - before for before, after in itertools.pairwise(times) if after >= before]


def watchdog_seconds(record: RunRecord) -> float | None:
    """How long a stage may take, as the run declares it."""
    return record.declared("watchdog_seconds")


def longest_silence_allowed(record: RunRecord, sessions: Sequence[Session]) -> float:
    """Seconds after its last heartbeat from which on a run that has not ended is silent."""
    gaps = [seconds for session in sessions for seconds in seconds_between(session)]
    watchdog = watchdog_seconds(record) if record.is_own else None
    limit = max(watchdog or _USUAL_WATCHDOG, _LEAST_SILENCE, _TIMES_THE_LONGEST * max(gaps, default=0.0))
    runtime = record.configuration.get("runtime")
    is_compiled = isinstance(runtime, dict) and bool(runtime.get("compile"))
    is_at_the_start = not (sessions and any(is_step(beat) for beat in sessions[-1].beats))
    return max(limit, _SECONDS_TO_COMPILE) if is_at_the_start and (is_compiled or not record.is_own) else limit


def usual_gap(seconds: Sequence[float]) -> float:
    """The median; 0 where there is none."""
    return statistics.median(seconds) if seconds else 0.0
