"""Where a run stood still: by its watchdog's dumps and words, by waits for batches, by gaps between its heartbeats."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nsa_doctor.artifacts.training_run.heartbeat_gaps import (
    Gap,
    gaps_of,
    seconds_between,
    usual_gap,
    watchdog_seconds,
)
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.sessions import Session, endings, is_step, sessions_of
from nsa_doctor.artifacts.training_run.stacks import Stall, is_wait_for_data, stall_in
from nsa_doctor.core.frames import Line

WAITING = "waiting for a batch"
_STALLED = re.compile(r"stalled: (?P<stage>.{1,100}?) of step (?P<step>\d{1,15}) has taken (?P<seconds>[\d.]{1,20}) s")
_NO_BATCH = re.compile(
    r"no batch came within [\d.]+ s: the loader has been at stage (?P<what>.{1,120}) for (?P<seconds>[\d.]+) s"
)
_LONGEST_WAIT = 120.0
_LONGEST_GAP = 180.0
_LONGEST_START = 1800.0
_TIMES_THE_USUAL = 20.0
_TIMES_THE_NEXT = 5.0
_FEWEST_GAPS = 8


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """Something that took too long; `source` says which of the loader's stages or files, `dump` is the dump's name.

    silent_watchdog: the seconds after which one of nsa's own runs was to say so and did not.
    """

    stage: str
    step: int | None
    seconds: float | None
    line: Line | None = None
    dump: str = ""
    source: str = ""
    rank: int = 0
    times: int = 1
    silent_watchdog: float | None = None

    @property
    def is_of_loader(self) -> bool:
        """Whether a batch was waited for."""
        return is_wait_for_data(self.stage)


def standstills(record: RunRecord) -> list[Standstill]:
    """Each stage that stood still, once, with the best line known of it; those with a line first."""
    found = [*_of_dumps(record), *_of_words(record)]
    if not found:
        found = [_with_silent_watchdog(record, each) for each in (*_of_waits(record), *_of_gaps(record))]
    merged: dict[tuple[str, int | None], Standstill] = {}
    for each in found:
        key = next((known for known in merged if _is_same(known, each)), (each.stage, each.step))
        merged[key] = _merged(merged[key], each) if key in merged else each
    sources = [reason["what"] for end in endings(record) if (reason := _NO_BATCH.search(end.reason))]
    stalls = [replace(each, source=sources[0]) if sources and each.is_of_loader else each for each in merged.values()]
    return sorted(stalls, key=lambda each: (each.line is None, each.step or 0))


def _of_dumps(record: RunRecord) -> Iterator[Standstill]:
    for dump in record.dumps:
        stall: Stall = stall_in(dump)
        yield Standstill(
            stage=stall.stage or "a step", step=stall.step, seconds=stall.seconds, line=stall.line, dump=dump.name
        )


def _of_words(record: RunRecord) -> Iterator[Standstill]:
    """Of events; and of an end that says that no batch came."""
    for beat in record.events:
        if found := _STALLED.match(beat.msg):
            seconds = float(found["seconds"]) if _is_number(found["seconds"]) else None
            yield Standstill(stage=found["stage"], step=int(found["step"]), seconds=seconds, rank=beat.rank)
        elif beat.msg.lower().startswith(("stalled", "stall:", "hung", "watchdog")):
            yield Standstill(stage="a step", step=beat.step, seconds=None, rank=beat.rank)
    for end in endings(record):
        if end.kind == "stalled" and (match := _NO_BATCH.search(end.reason)):
            step = None if end.step is None else end.step + 1
            seconds = float(match["seconds"]) if _is_number(match["seconds"]) else None
            yield Standstill(stage=WAITING, step=step, seconds=seconds, rank=end.rank)


def _of_waits(record: RunRecord) -> Iterator[Standstill]:
    """Of steps that tell how long they waited for their batch."""
    slow = [beat for beat in record.beats if is_step(beat) and (beat.fetch_seconds or 0.0) > _LONGEST_WAIT]
    if slow:
        worst = max(slow, key=lambda beat: beat.fetch_seconds or 0.0)
        yield Standstill(stage=WAITING, step=worst.step, seconds=worst.fetch_seconds, rank=worst.rank, times=len(slow))


def _of_gaps(record: RunRecord) -> Iterator[Standstill]:
    """Of a gap like no other, that neither a start nor an evaluation nor a save explains."""
    if record.clock == "none":
        return
    for rank in record.ranks:
        found = [gap for session in sessions_of(record, rank) for gap in _odd_gaps(record, session)]
        if found:
            worst = max(found, key=lambda gap: gap.seconds)
            yield Standstill(stage="a step", step=worst.after.step, seconds=worst.seconds, rank=rank, times=len(found))
            return


def _odd_gaps(record: RunRecord, session: Session) -> list[Gap]:
    seconds = seconds_between(session)
    limit = max(watchdog_seconds(record) or _LONGEST_GAP, _TIMES_THE_USUAL * usual_gap(seconds))
    if len(seconds) < _FEWEST_GAPS or max(seconds) <= limit:
        return []
    gaps = gaps_of(session)
    steps = [gap for gap in gaps if is_step(gap.before) and is_step(gap.after) and _is_next(gap, gaps)]
    evaluated = {each.step for each in record.evaluations}
    saved = {each.step for each in record.saved}
    candidates = [
        gap for gap in steps if gap.seconds > limit and not {gap.before.step, gap.after.step} & (evaluated | saved)
    ]
    others = sorted((gap.seconds for gap in gaps if gap not in candidates), reverse=True)
    next_longest = others[0] if others else 0.0
    return [gap for gap in candidates if gap.seconds > _TIMES_THE_NEXT * next_longest and _is_rare(candidates, gaps)]


def _is_next(gap: Gap, gaps: list[Gap]) -> bool:
    """Whether the later of two heartbeats is of the next step that is logged, and not of the first ones."""
    return gap is not gaps[0] or gap.seconds > _LONGEST_START


def _is_rare(candidates: list[Gap], gaps: list[Gap]) -> bool:
    """Gaps that come back regularly are how the run works: an evaluation that is not logged, say."""
    if len(candidates) < 3:
        return True
    places = [gaps.index(gap) for gap in candidates]
    strides = [b - a for a, b in itertools.pairwise(places)]
    return max(strides) > 2 * min(strides)


def _with_silent_watchdog(record: RunRecord, each: Standstill) -> Standstill:
    """With the watchdog that should have reported it, where the run is one that has one."""
    runtime, seconds = record.configuration.get("runtime"), watchdog_seconds(record)
    is_watched = record.is_own and not (isinstance(runtime, dict) and runtime.get("monitors") is False)
    is_late = is_watched and seconds is not None and each.seconds is not None and each.seconds > seconds
    return replace(each, silent_watchdog=seconds) if is_late else each


def _is_same(known: tuple[str, int | None], each: Standstill) -> bool:
    """An end before the first step names none, and is that of the stall before it."""
    return known[0] == each.stage and (each.step is None or known[1] in (None, each.step))


def _merged(one: Standstill, other: Standstill) -> Standstill:
    best = one if one.line is not None else other
    seconds = [each for each in (one.seconds, other.seconds) if each is not None]
    return replace(
        best,
        step=one.step if one.step is not None else other.step,
        seconds=max(seconds, default=None),
        dump=one.dump or other.dump,
        rank=max(one.rank, other.rank),
        times=max(one.times, other.times),
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
