"""The sessions of a run, from one start to the next, and how each of them ended."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord

Kind = Literal["finished", "stopped", "not finite", "stalled", "another rank", "ranks differ", "error"]
_STARTED = re.compile(r"(?P<resumed>resum(?:ed|ing))\b.*?(?P<step>\d+)?\D*$|(?:re)?started\b|starting\b", re.IGNORECASE)
_FINISHED = re.compile(r"(?:run |training |train )?(?:finished|done|completed?|end)\b", re.IGNORECASE)
_BROKEN = re.compile(
    r"(?:\w*error|\w*exception|fatal|crash(?:ed)?|failed|abort(?:ed)?|oom|traceback)\b|(?:cuda )?out of memory",
    re.IGNORECASE,
)
_OF_ANOTHER = re.compile(
    r"rank (?P<rank>\d{1,6}) ended (?:the run: (?P<reason>.*)|(?P<silent>without a word.*))", re.DOTALL
)
_DIFFERENT = re.compile(r"after step (?P<step>\d+) rank (?P<rank>\d+) holds another (?P<name>\S+)")
_NOT_FINITE = re.compile(r"\bfinite\b|\bis (?:nan|-?inf)", re.IGNORECASE)
_LOST = re.compile(r"\bgloo\b|\bnccl|process ?group|collective operation|connection closed by peer", re.IGNORECASE)
_ENDED = "ended: "


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a session of a process ended; `kind` says whose matter it is."""

    kind: Kind
    reason: str
    rank: int = 0
    step: int | None = None
    ts: float | None = None


@dataclass(frozen=True, kw_only=True)
class Session:
    """Heartbeats of one process from a start to the next; `resumed_from` is the step it says it goes on from."""

    beats: tuple[Beat, ...]
    is_resumed: bool = False
    resumed_from: int | None = None

    @cached_property
    def steps(self) -> tuple[Beat, ...]:
        """Those that name a step and a loss, events apart."""
        return tuple(beat for beat in self.beats if is_step(beat))

    @cached_property
    def last_step(self) -> int | None:
        """The last step that was made."""
        return max((beat.step for beat in self.beats if is_step(beat) and beat.step is not None), default=None)

    @cached_property
    def ending(self) -> Ending | None:
        """How it ended, as far as it says."""
        step = self.last_step
        for index, beat in enumerate(reversed(self.beats[-20:])):
            if beat.msg.startswith(_ENDED):
                reason = beat.msg.removeprefix(_ENDED)
                return Ending(kind=kind_of(reason), reason=reason, rank=beat.rank, step=step, ts=beat.ts)
            if _FINISHED.match(beat.msg):
                return Ending(kind="finished", reason=beat.msg, rank=beat.rank, step=step, ts=beat.ts)
            if index == 0 and _BROKEN.match(beat.msg):
                return Ending(kind="error", reason=beat.msg, rank=beat.rank, step=step, ts=beat.ts)
            if is_step(beat):
                return None
        return None


def is_step(beat: Beat) -> bool:
    """Whether a heartbeat is of a step that was made, not of an event beside it."""
    return beat.step is not None and beat.loss is not None and not beat.msg.startswith("not finite")


def sessions_of(record: RunRecord, rank: int = 0) -> tuple[Session, ...]:
    """In order; a start, a resume, another process, or a step that goes back begins a new one."""
    return record.once("sessions", rank, lambda: tuple(_sessions(beat for beat in record.beats if beat.rank == rank)))


def kind_of(reason: str) -> Kind:
    """Whose matter an end is, by its words."""
    if reason.startswith(("stopped by SIG", "KeyboardInterrupt")):
        return "stopped"
    if reason.startswith(("stopped: ", "stopped after ")) and _NOT_FINITE.search(reason):
        return "not finite"
    if "no batch came within" in reason and "the loader has been at" in reason:
        return "stalled"
    if _OF_ANOTHER.match(reason) or reason.startswith("lost another process") or _LOST.search(reason):
        return "another rank"
    return "ranks differ" if _DIFFERENT.match(reason) else "error"


def blamed(reason: str) -> tuple[int, str] | None:
    """The rank that another names as the one that ended, and its reason."""
    found = _OF_ANOTHER.match(reason)
    return (int(found["rank"]), found["reason"] or f"ended {found['silent']}") if found else None


def differing(reason: str) -> tuple[int, int, str] | None:
    """(step, rank, parameter) of processes that hold other parameters."""
    found = _DIFFERENT.match(reason)
    return (int(found["step"]), int(found["rank"]), found["name"]) if found else None


def endings(record: RunRecord) -> list[Ending]:
    """How the last session of each process ended, the earliest first; without those that do not say."""
    last = [sessions[-1].ending for rank in record.ranks if (sessions := sessions_of(record, rank))]
    return sorted((each for each in last if each is not None), key=lambda each: (each.ts is None, each.ts or 0.0))


def is_over(record: RunRecord) -> bool:
    """Whether the run says that it ended, or has made all of its steps."""
    if endings(record) or (record.metrics and not record.is_own):
        return True
    wanted = record.declared("steps") or record.declared("max_steps")
    sessions = sessions_of(record)
    made = sessions[-1].last_step if sessions else None
    return not record.is_own and wanted is not None and made is not None and made >= wanted


def _sessions(beats: Iterable[Beat]) -> Iterator[Session]:
    own: list[Beat] = []
    pid: int | None = None
    last: int | None = None
    for beat in beats:
        start = _STARTED.match(beat.msg) if beat.msg and beat.msg != "step" else None
        is_another = beat.pid is not None and pid is not None and beat.pid != pid
        goes_back = last is not None and is_step(beat) and beat.step is not None and beat.step < last
        if own and (start or is_another or goes_back):
            yield _session(own)
            own, last = [], None
        own.append(beat)
        pid = beat.pid if beat.pid is not None else pid
        last = beat.step if is_step(beat) else last
    if own:
        yield _session(own)


def _session(beats: list[Beat]) -> Session:
    first = next((beat for beat in itertools.islice(beats, 5) if beat.msg and beat.msg != "step"), None)
    found = _STARTED.match(first.msg) if first is not None else None
    is_resumed = bool(found and found["resumed"])
    step = first.step if first is not None and is_resumed else None
    if is_resumed and step is None and found is not None and found["step"]:
        step = int(found["step"][:15])
    return Session(beats=tuple(beats), is_resumed=is_resumed, resumed_from=step)
