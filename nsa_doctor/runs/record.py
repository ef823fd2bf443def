"""What the folder of a training run shows, as frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One heartbeat: `ts` in seconds since the epoch, memory in bytes; None is what the line did not say."""

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


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run; `beats` are all ranks' heartbeats in the order they were written, `notes` what could not be read."""

    folder: str
    beats: tuple[Beat, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    watchdog_dumps: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Beat, ...]:
        """Rank 0's heartbeats that name a step and a loss."""
        return tuple(beat for beat in self.beats if beat.rank == 0 and beat.step is not None and beat.loss is not None)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The configuration the run says it had; empty when it does not say."""
        found = self.environment.get("config")
        return found if isinstance(found, dict) else {}

    @property
    def device_name(self) -> str:
        """The device the run says it had."""
        return str(self.environment.get("device_name") or self.environment.get("device") or "")
