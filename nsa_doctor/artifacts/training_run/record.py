"""What the folder of a training run shows, as frozen records."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from nsa_doctor.artifacts.training_run.replay_result import Replay

_Found = TypeVar("_Found")
Clock = Literal["absolute", "relative", "none"]
_A_DATE = 946_684_800.0  # the year 2000, in seconds since the epoch: less is time since something else


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One heartbeat: `ts` in seconds since the epoch, memory in bytes; None is what the line did not say.

    batch: the checksum of what the process trained on in the step, as nsa's heartbeats tell it.
    """

    ts: float | None = None
    rank: int = 0
    step: int | None = None
    msg: str = ""
    loss: float | None = None
    tokens_per_second: float | None = None
    fetch_seconds: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    memory: float | None = None
    pid: int | None = None
    batch: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The held-out loss at a step."""

    step: int | None
    loss: float


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A file of stacks: its name, and the beginning of its text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint in the folder; `fault` says why it is none that a run can go on from, if so."""

    name: str
    step: int | None
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a process left behind of why it ended."""

    rank: int
    reason: str
    ts: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run; `beats` are all ranks' heartbeats in the order they were written, `notes` what could not be read.

    `source` names the file or files that the beats are from, and `is_own` is whether they are nsa's own heartbeats,
    which tell of saves, stalls and ends. `dumps` are the watchdog's, `nonfinite` what was kept of each step that was
    not finite, `saved` the checkpoints, sound or not. `trainer` is what a foreign trainer says of itself.
    `replay` is what computing some of its steps again gave, where that was asked for.
    """

    folder: str
    beats: tuple[Beat, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    watchdog_dumps: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    is_own: bool = False
    evaluations: tuple[Evaluation, ...] = ()
    gates: tuple[Mapping[str, float], ...] = ()
    dumps: tuple[Dump, ...] = ()
    nonfinite: tuple[Mapping[str, Any], ...] = ()
    saved: tuple[Saved, ...] = ()
    failures: tuple[Failure, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    replay: Replay | None = None
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # what `once` has found

    def once(self, name: str, rank: int, find: Callable[[], _Found]) -> _Found:
        """What is to be found in a rank's heartbeats, looked for the first time alone."""
        if (name, rank) not in self.known:
            self.known[name, rank] = find()
        found: _Found = self.known[name, rank]
        return found

    @cached_property
    def steps(self) -> tuple[Beat, ...]:
        """Rank 0's heartbeats that name a step and a loss."""
        return tuple(beat for beat in self.beats if beat.rank == 0 and beat.step is not None and beat.loss is not None)

    @cached_property
    def events(self) -> tuple[Beat, ...]:
        """Heartbeats of something other than a step."""
        return tuple(beat for beat in self.beats if beat.msg and beat.msg != "step")

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The processes that left a heartbeat."""
        return tuple(sorted({beat.rank for beat in self.beats}))

    @cached_property
    def world_size(self) -> int:
        """How many processes the run says it had; as many as left a heartbeat when it does not say."""
        size = self.environment.get("world_size")
        is_usable = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1_000_000
        return size if is_usable and size is not None else max(self.ranks, default=0) + 1

    @cached_property
    def clock(self) -> Clock:
        """Whether heartbeats tell the time of day, the time since some moment, or none."""
        times = [beat.ts for beat in self.beats if beat.ts is not None and math.isfinite(beat.ts)]
        if not times:
            return "none"
        return "absolute" if max(times) >= _A_DATE else "relative"

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The configuration the run says it had; empty when it does not say."""
        found = self.environment.get("config")
        return found if isinstance(found, dict) else {}

    def declared(self, name: str) -> float | None:
        """A finite number of the configuration's section `train`, or of what a foreign trainer says of itself."""
        section = self.configuration.get("train")
        for place in (section, self.trainer):
            value = place.get(name) if isinstance(place, Mapping) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
                return float(value)
        return None

    @property
    def device_name(self) -> str:
        """The device the run says it had."""
        return str(self.environment.get("device_name") or self.environment.get("device") or "")
