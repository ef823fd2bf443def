"""What of a run's heartbeats would mislead a reader, though each of them can be read: one sentence for each thing."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nsa_doctor.artifacts.training_run.numbers import is_time
from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.sessions import is_step
from nsa_doctor.core.text import counted

_FEWEST_TWICE = 3
_LEAST_BACK = 0.5  # seconds: clocks are put right by less
_A_DATE = 946_684_800.0  # a lesser time is that since a start, of which a log may hold several
_ENDLESS = 1e150


@dataclass
class _Seen:
    """What one process has logged so far."""

    last: Beat | None = None
    twice: int = 0
    first_twice: int | None = None
    back: list[tuple[float, int | None]] = field(default_factory=list)
    endless: int = 0


def misleading(beats: Iterable[Beat]) -> Iterator[str]:
    """Steps that are logged twice, a clock that runs backwards, losses beyond what can be computed with; by process."""
    seen: dict[int, _Seen] = {}
    for beat in beats:
        _add(seen.setdefault(beat.rank, _Seen()), beat)
    for rank, log in sorted(seen.items()):
        yield from _sentences(f"rank {rank}: " if len(seen) > 1 else "", log)


def _add(log: _Seen, beat: Beat) -> None:
    last, log.last = log.last, beat
    if beat.loss is not None and math.isfinite(beat.loss) and abs(beat.loss) > _ENDLESS:
        log.endless += 1
    if last is None:
        return
    if last.step == beat.step and last.loss == beat.loss and is_step(beat) and last.msg == beat.msg:
        log.twice += 1
        log.first_twice = beat.step if log.first_twice is None else log.first_twice
    if is_time(beat.ts) and is_time(last.ts) and beat.ts > _A_DATE and last.ts - beat.ts > _LEAST_BACK:
        log.back.append((last.ts - beat.ts, beat.step))


def _sentences(whose: str, log: _Seen) -> Iterator[str]:
    if log.twice >= _FEWEST_TWICE:
        yield (
            f"{whose}{counted(log.twice, 'line')} in a row tell the same step and loss again, the first at step "
            f"{log.first_twice}: two processes may write into one log, and speeds are of both"
        )
    if log.back:
        most, step = max(log.back, key=lambda pair: pair[0])
        place = "" if step is None else f" at step {step}"
        yield (
            f"{whose}the clock goes back {counted(len(log.back), 'time')}, by up to {most:,.0f} s{place}: "
            "silences and speeds about it are not to be relied on"
        )
    if log.endless:
        yield f"{whose}the loss is beyond {_ENDLESS:g} in {counted(log.endless, 'line')}, judged as {_ENDLESS:g} there"
