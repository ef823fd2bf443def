"""Some batches taken from a source, how long each took, and what ended the taking."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

from nsa_doctor.artifacts.data.batch import Batch, UnreadableBatchError, read_batch
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.artifacts.data.waiting import Caller, TooLate, place_of
from nsa_doctor.core.errors import Caught, NotComparableError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.state import seed_everything

EndKind = Literal["late", "raised", "ended", "unreadable"]
_SECONDS_TO_CLOSE = 5.0
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class End:
    """Why no further batch was taken; `stage` is what was asked for: `open` or `batch`."""

    kind: EndKind
    stage: str
    sentence: str = ""
    seconds: float = 0.0
    where: Place = field(default_factory=Place)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """Batches in their order with the seconds each took, opening included in the first.

    length: what `len()` says, where it says anything. state: its position after the last batch, with `state_kind` the
    name it is had by.
    """

    batches: tuple[Batch, ...] = ()
    seconds: tuple[float, ...] = ()
    end: End | None = None
    length: int | None = None
    state: Any = None
    state_kind: str = ""


def train_rows(subject: DataSubject) -> Reading:
    """The first batches of rank 0 alone; raises NotComparableError when there is none."""
    reading = read(subject, Opening(), subject.num_batches)
    if not reading.batches:
        raise NotComparableError("no batch came")
    return reading


def read(subject: DataSubject, opening: Opening, count: int, *, again: int = 0, wants_state: bool = False) -> Reading:
    """Up to `count` batches, opened again once for each `again`; random generators are seeded alike before each.

    Raises NotComparableError where an earlier reading was left hanging.
    """
    key = (opening.split, opening.rank, opening.world_size, repr(opening.state), count, again, wants_state)
    if key not in subject.seen:
        if any(each.end is not None and each.end.kind == "late" for each in subject.seen.values()):
            raise NotComparableError("means nothing where batches do not come")
        subject.seen[key] = _read(subject, opening, count, wants_state)
        subject.listen(_description(opening))
    found: Reading = subject.seen[key]
    return found


def _read(subject: DataSubject, opening: Opening, count: int, wants_state: bool) -> Reading:
    frames = FrameFilter(subject.packages)
    caller = Caller(frames)
    begun = perf_counter()
    seed_everything(_SEED)
    opened = caller.call(lambda: _open(subject, opening), subject.limit_seconds)
    if isinstance(opened, (Caught, TooLate)):
        return Reading(end=_ended(opened, "open", perf_counter() - begun, frames, caller))
    source, iterator, length = opened
    taken: list[Batch] = []
    times: list[float] = []
    end: End | None = None
    while len(taken) < count and end is None:
        left = subject.limit_seconds - (perf_counter() - begun) if not taken else subject.limit_seconds
        asked = perf_counter() if taken else begun
        answer = caller.call(lambda: next(iterator), max(left, 0.001))
        seconds = perf_counter() - asked
        if isinstance(answer, (Caught, TooLate)):
            end = _ended(answer, "batch", seconds, frames, caller)
            break
        try:
            taken.append(read_batch(answer))
            times.append(seconds)
        except UnreadableBatchError as error:
            end = End(kind="unreadable", stage="batch", sentence=str(error), seconds=seconds)
    reading = Reading(batches=tuple(taken), seconds=tuple(times), end=end, length=length)
    if end is None and wants_state:
        reading = _with_state(subject, reading, source, iterator, caller)
    _close(caller, source, iterator, end)
    return reading


def _description(opening: Opening) -> str:
    if opening.split == "heldout":
        return "held-out batches"
    if opening.state is not None:
        return "batches from a saved position"
    return f"batches of rank {opening.rank} of {opening.world_size}" if opening.world_size > 1 else "batches"


def _open(subject: DataSubject, opening: Opening) -> tuple[Any, Any, int | None]:
    source: Iterable[Any] = subject.open(opening)
    iterator = iter(source)
    length = None
    if hasattr(type(source), "__len__"):
        with suppress(TypeError, NotImplementedError, AttributeError):
            length = len(source)  # type: ignore[arg-type]
    return source, iterator, length


def _ended(answer: Caught | TooLate, stage: str, seconds: float, frames: FrameFilter, caller: Caller) -> End:
    if isinstance(answer, TooLate):
        return End(kind="late", stage=stage, seconds=seconds, where=answer.where)
    error = answer.error
    if isinstance(error, StopIteration) and stage == "batch":
        return End(kind="ended", stage=stage, seconds=seconds)
    where = place_of(answer, frames)
    stalled = getattr(error, "stage", None) if type(error).__name__ == "LoaderStalledError" else None
    if isinstance(stalled, str):
        return End(kind="late", stage=stage, sentence=str(error), seconds=seconds, where=caller.standing())
    sentence = str(error) if type(error).__name__ == "DataError" else answer.sentence
    return End(kind="raised", stage=stage, sentence=sentence, seconds=seconds, where=where)


def _with_state(subject: DataSubject, reading: Reading, source: Any, iterator: Any, caller: Caller) -> Reading:
    if "state" not in subject.takes and not hasattr(source, "load_state_dict"):
        return reading  # what it tells could not be given back to it
    for holder in (iterator, source):
        for name in ("state", "state_dict"):
            method = getattr(holder, name, None)
            if callable(method):
                answer = caller.call(method, subject.limit_seconds)
                if isinstance(answer, Caught):
                    raise NotComparableError(f"{name}() raises {answer.sentence}")
                return replace(reading, state=answer, state_kind=name)
    return reading


def _close(caller: Caller, source: Any, iterator: Any, end: End | None) -> None:
    """Let go of it; what hangs is left behind."""
    if end is None or end.kind != "late":
        for held in dict.fromkeys((id(iterator), id(source))):
            close = getattr(iterator if held == id(iterator) else source, "close", None)
            if callable(close):
                caller.call(close, _SECONDS_TO_CLOSE)
    caller.end()
