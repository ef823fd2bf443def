"""How a run stands at this moment, in one line."""

import itertools
import statistics
from dataclasses import dataclass

from nsa_doctor.artifacts.training_run.numbers import is_time
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.sessions import is_step
from nsa_doctor.core.text import decimal, plain_rate

_RECENT = 50


@dataclass(frozen=True, kw_only=True)
class Status:
    """Rank 0's last step, its loss and pace; None is what the run does not tell."""

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    age_seconds: float | None = None
    seconds_left: float | None = None
    event: str = ""

    def __str__(self) -> str:
        parts = []
        if self.step is not None:
            parts.append(f"step {self.step:,}" + (f"/{self.steps:,}" if self.steps else ""))
        if self.loss is not None:
            parts.append(f"loss {decimal(self.loss)}")
        if self.tokens_per_second is not None:
            parts.append(f"{plain_rate(self.tokens_per_second)} tokens/s")
        if self.event:
            parts.append(self.event)
        if self.age_seconds is not None:
            parts.append(f"last heartbeat {clock(self.age_seconds)} ago")
        if self.seconds_left is not None:
            parts.append(f"ETA {clock(self.seconds_left)}")
        return " | ".join(parts) or "no step yet"


def status_of(record: RunRecord, now: float) -> Status:
    """Looks at the last few heartbeats alone, however many there are."""
    recent = list(itertools.islice((beat for beat in reversed(record.beats) if beat.rank == 0), 4 * _RECENT))
    made = [beat for beat in recent if is_step(beat)][:_RECENT]
    last = made[0] if made else Beat()
    newest = next((beat.ts for beat in recent if is_time(beat.ts)), None)
    total = record.declared("steps") or record.declared("max_steps")
    is_dated = newest is not None and record.clock == "absolute"
    pace = _seconds_per_step(made)
    left = None if pace is None or total is None or last.step is None else max(0.0, total - last.step) * pace
    event = recent[0].msg if recent and not is_step(recent[0]) and recent[0].msg != "evaluated" else ""
    return Status(
        step=last.step,
        steps=None if total is None else int(total),
        loss=last.loss,
        tokens_per_second=last.tokens_per_second,
        age_seconds=max(0.0, now - newest) if is_dated and newest is not None else None,
        seconds_left=left,
        event=event,
    )


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, `5 s`."""
    whole = int(min(seconds, 1e12))
    hours, minutes = whole // 3600, whole // 60 % 60
    if whole < 60:
        return f"{whole} s"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _seconds_per_step(newest_first: list[Beat]) -> float | None:
    paces = [
        (new.ts - old.ts) / (new.step - old.step)
        for new, old in itertools.pairwise(newest_first)
        if is_time(new.ts) and is_time(old.ts) and new.step is not None and old.step is not None and new.step > old.step
    ]
    return statistics.median(paces) if paces else None
