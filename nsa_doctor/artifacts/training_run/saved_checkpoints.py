"""What a run should have saved by now, and what there is of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.record import RunRecord, Saved
from nsa_doctor.artifacts.training_run.sessions import is_over, is_step, sessions_of

_SAVED = re.compile(r"(?:saved|wrote)\b(?: checkpoint)?:?\s*(?:to\s+)?(?P<name>\S{1,300})?", re.IGNORECASE)
_MOST_LATE = 2.5  # of the declared stride


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A checkpoint that should be there and is not, or is none; `what` says so."""

    step: int | None
    what: str


def logged_saves(record: RunRecord) -> dict[int, str]:
    """By step, the name of each checkpoint that the heartbeat says was saved, in the order they were last saved."""
    found: dict[int, str] = {}
    for beat in record.beats:
        match = _SAVED.match(beat.msg) if beat.msg else None
        if match and beat.step is not None and beat.rank == 0:
            found.pop(beat.step, None)
            found[beat.step] = (match["name"] or "").rstrip("/").rpartition("/")[2]
    return found


def losses(record: RunRecord) -> list[Loss]:
    """Every checkpoint that is missing, gone or empty; those that were left out for newer ones are not."""
    logged = logged_saves(record)
    return [*_never_made(record, logged), *_gone(record, logged)]


def _never_made(record: RunRecord, logged: dict[int, str]) -> Iterator[Loss]:
    """Steps at which a checkpoint was due, and after which the run went on without one."""
    every = record.declared("save_every") or record.declared("save_steps")
    if every is None or not 1 <= every < 1e12 or every != int(every):
        return
    stride = int(every)
    if not record.is_own:
        yield from _late(record, stride)
        return
    there = set(logged) | {each.step for each in record.saved}
    for session in sessions_of(record):
        steps = [beat.step for beat in session.beats if is_step(beat) and beat.step is not None]
        for step in steps:
            if step % stride == 0 and step < max(steps) and step not in there:
                yield Loss(step=step, what="was not saved")


def _late(record: RunRecord, stride: int) -> Iterator[Loss]:
    """Of a trainer that does not tell of its saves: the newest checkpoint in its folder lies too far back."""
    newest = max((each.step for each in record.saved if each.step is not None), default=None)
    last = max((beat.step for beat in record.steps if beat.step is not None), default=None)
    if newest is not None and last is not None and last - newest > _MOST_LATE * stride:
        yield Loss(step=newest + stride, what="was not saved")


def _gone(record: RunRecord, logged: dict[int, str]) -> Iterator[Loss]:
    """What was saved last, or lies between others that are there; and what is there but empty."""
    there = {each.step: each for each in record.saved if each.step is not None}
    names = {each.name.rpartition("/")[2]: each for each in record.saved}
    if logged:
        newest = list(logged)[-1]
        kept = [step for step in there if step in logged]
        for step, name in logged.items():
            is_wanted = step == newest or (kept and min(kept) < step < newest)
            if is_wanted and step not in there and not _is_by_name(name, names):
                yield Loss(step=step, what="was saved and is gone")
    for each in record.saved:
        is_one = each.step in logged if logged else not each.fault.startswith("is an empty folder")
        is_set_aside = each.fault.startswith("was set aside")
        if is_one and each.fault and not is_set_aside and not _is_being_written(record, each):
            yield Loss(step=each.step, what=each.fault)


def _is_being_written(record: RunRecord, saved: Saved) -> bool:
    """Whether a run that has not ended made no step since, as where a save is under way."""
    last = max((beat.step for beat in record.beats if is_step(beat) and beat.step is not None), default=0)
    return (saved.step is None or saved.step >= last) and not is_over(record)


def _is_by_name(name: str, names: dict[str, Saved]) -> bool:
    return bool(name) and (name in names or f"unreadable_{name}" in names)
