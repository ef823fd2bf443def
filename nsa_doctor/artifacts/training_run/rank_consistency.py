"""Several processes of one run: who fell behind, who tells other numbers, who ended first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.heartbeat_gaps import longest_silence_allowed, seconds_between, usual_gap
from nsa_doctor.artifacts.training_run.numbers import is_time
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.sessions import (
    blamed,
    differing,
    endings,
    is_over,
    is_step,
    kind_of,
    sessions_of,
)

_FEWEST_ALIKE = 3
_TOLERANCE = 1e-6
_LEAST_STEPS_BEHIND = 3
_LEAST_SECONDS_BEHIND = 5.0
_TIMES_THE_USUAL = 2.0
_QUANTITIES = ("loss", "learning_rate", "grad_norm")


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that is behind the others, or that left no heartbeat at all."""

    rank: int
    step: int | None
    others_step: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """The first step at which a rank tells another number than rank 0, or holds another parameter."""

    rank: int
    step: int
    quantity: str
    own: float | None = None
    others: float | None = None
    parameter: str = ""


@dataclass(frozen=True, kw_only=True)
class Death:
    """The rank that ended first, and why, in its own words or those of the others."""

    rank: int | None
    reason: str
    step: int | None


def behind(record: RunRecord) -> list[Behind]:
    """Ranks that are several steps behind the first, or missing though the run counts them."""
    steps = {rank: _last_step(record, rank) for rank in record.ranks}
    most = max((step for step in steps.values() if step is not None), default=None)
    if most is None:
        return []
    found = [
        Behind(rank=rank, step=None, others_step=most)
        for rank in range(min(record.world_size, 10_000))
        if rank not in steps and (record.is_own or len(steps) > 1)
    ]
    ahead = next(rank for rank, step in steps.items() if step == most)
    is_at_rest = is_over(record)
    for rank, step in steps.items():
        lag = most - (step or 0)
        seconds = _seconds_between(record, rank, ahead)
        is_late = seconds is None or seconds > _patience(record, ahead)
        is_long = seconds is not None and seconds > longest_silence_allowed(record, sessions_of(record, ahead)[-1:])
        if (lag >= _LEAST_STEPS_BEHIND and (is_at_rest or is_late)) or (lag >= 1 and is_long):
            found.append(Behind(rank=rank, step=step, others_step=most, seconds=seconds))
    return found


def disagreement(record: RunRecord) -> Disagreement | None:
    """What the trainer's comparison says, else the first step at which numbers that were one are two."""
    for end in endings(record):
        if (difference := differing(end.reason)) is not None:
            return Disagreement(step=difference[0], rank=difference[1], quantity="parameters", parameter=difference[2])
    found = [
        each
        for quantity in _QUANTITIES
        for rank in record.ranks[1:]
        if (each := _first_difference(record, quantity, rank)) is not None
    ]
    return min(found, key=lambda each: each.step, default=None)


def comparable(record: RunRecord) -> bool:
    """Whether ranks tell the loss of the whole run, so that it has to be the same: they do at some steps."""
    return any(_shared(record, quantity, rank)[1] for quantity in _QUANTITIES for rank in record.ranks[1:])


def death(record: RunRecord) -> Death | None:
    """Who ended first, where one process ended and the others followed."""
    found = endings(record)
    if not any(end.kind == "another rank" for end in found) and not _is_one_alone(record):
        return None
    for end in found:
        if (blame := blamed(end.reason)) is not None and kind_of(blame[1]) != "another rank":
            own = next((each.reason for each in found if each.rank == blame[0] and each.kind == "error"), blame[1])
            return Death(rank=blame[0], reason=own, step=_last_step(record, blame[0]))
    errors = [end for end in found if end.kind == "error"]
    words = [each for each in record.failures if kind_of(each.reason) == "error"]
    words.sort(key=lambda each: each.ts or math.inf)
    if errors or words:
        rank, reason = (errors[0].rank, errors[0].reason) if errors else (words[0].rank, words[0].reason)
        return Death(rank=rank, reason=reason, step=_last_step(record, rank))
    silent = [rank for rank in record.ranks if rank not in {end.rank for end in found}]
    if len(silent) == 1:
        return Death(rank=silent[0], reason="ended without a word", step=_last_step(record, silent[0]))
    reason = next((end.reason for end in found if end.kind == "another rank"), "")
    return Death(rank=None, reason=reason, step=_last_step(record, 0)) if reason else None


def _is_one_alone(record: RunRecord) -> bool:
    """Whether one rank ended with an error of its own, and others say nothing of theirs."""
    errors = [end for end in endings(record) if end.kind == "error"]
    return len(record.ranks) > 1 and 0 < len(errors) < len(record.ranks)


def _last_step(record: RunRecord, rank: int) -> int | None:
    sessions = sessions_of(record, rank)
    return sessions[-1].last_step if sessions else None


def _seconds_between(record: RunRecord, rank: int, ahead: int) -> float | None:
    """How much older the last heartbeat of a rank is than that of the first."""
    last: dict[int, float] = {}
    for beat in record.beats:
        if beat.rank in (rank, ahead) and is_time(beat.ts):
            last[beat.rank] = max(beat.ts, last.get(beat.rank, beat.ts))
    return last[ahead] - last[rank] if rank in last and ahead in last else None


def _patience(record: RunRecord, rank: int) -> float:
    gaps = [seconds for session in sessions_of(record, rank) for seconds in seconds_between(session)]
    return max(_LEAST_SECONDS_BEHIND, _TIMES_THE_USUAL * usual_gap(gaps))


def _shared(record: RunRecord, quantity: str, rank: int) -> tuple[list[tuple[int, float, float]], bool]:
    """(step, rank 0's, the other's) where both tell it, and whether it is one number by what most of them say."""
    one, other = _by_step(record, quantity, record.ranks[0]), _by_step(record, quantity, rank)
    both = [(step, one[step], other[step]) for step in sorted(one.keys() & other.keys())]
    alike = sum(_is_same(a, b) for _, a, b in both)
    return both, alike >= _FEWEST_ALIKE and (not both or _is_same(both[0][1], both[0][2]))


def _first_difference(record: RunRecord, quantity: str, rank: int) -> Disagreement | None:
    both, is_one = _shared(record, quantity, rank)
    if not is_one and not (record.is_own and quantity != "grad_norm"):
        return None
    for step, own, others in both:
        if not _is_same(own, others):
            return Disagreement(step=step, rank=rank, quantity=quantity, own=others, others=own)
    return None


def _by_step(record: RunRecord, quantity: str, rank: int) -> Mapping[int, float]:
    """The last that was logged of each step."""
    return {
        beat.step: value
        for beat in record.beats
        if beat.rank == rank
        and is_step(beat)
        and beat.step is not None
        and (value := _value(beat, quantity)) is not None
    }


def _value(beat: Beat, quantity: str) -> float | None:
    value = getattr(beat, quantity)
    return value if isinstance(value, float) else None


def _is_same(one: float, other: float) -> bool:
    if not math.isfinite(one) or not math.isfinite(other):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other))
