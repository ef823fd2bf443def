"""heartbeat_rank<N>.jsonl: a line for every step and every event, on the disk before the next one begins."""

import json
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from nsa.train.files import Lines, is_held_by_another
from nsa.train.memory import memory
from nsa.train.record import StepRecord

ENDED = "ended: "
_LONGEST_LINE = 65_536


class Heartbeat:
    """Appends lines; the watchdog's thread and the run's own may both write.

    A line holds ts, iso, pid, rank, step, msg, loss, toks_per_s, dt_fetch_s, grad_norm, lr, batch,
    gpu_mem_alloc, gpu_mem_reserved and rss_bytes; what an event has no value for is null.
    """

    def __init__(self, folder: Path, rank: int, device: torch.device) -> None:
        self._rank, self._device, self._lock = rank, device, threading.Lock()
        self._lines = Lines(_path(folder, rank))
        self._lines.hold()

    def step(self, record: StepRecord) -> None:
        """A step was made."""
        self._write(
            step=record.step,
            msg="step",
            loss=record.loss,
            toks_per_s=record.tokens_per_second,
            dt_fetch_s=record.fetch_seconds,
            grad_norm=record.gradient_norm,
            lr=record.learning_rate,
            batch=record.batch,
        )

    def event(self, msg: str, step: int | None = None, loss: float | None = None, *, batch: str | None = None) -> None:
        """Anything else happened."""
        self._write(step=step, msg=msg, loss=loss, batch=batch)

    def close(self) -> None:
        """No line follows."""
        self._lines.close()

    def _write(self, **values: int | float | str | None) -> None:
        now = time.time()
        line = {
            "ts": now,
            "iso": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            "pid": os.getpid(),
            "rank": self._rank,
            "step": None,
            "msg": "",
            **dict.fromkeys(("loss", "toks_per_s", "dt_fetch_s", "grad_norm", "lr", "batch")),
            **values,
            **memory(self._device),
        }
        with self._lock:
            self._lines.add(json.dumps(line))


def last_beat(folder: Path, rank: int) -> dict[str, Any] | None:
    """The last whole line of a process; None when there is none."""
    try:
        with _path(folder, rank).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
            lines = file.read().splitlines()
        found = json.loads(lines[-1])
        return found if isinstance(found, dict) and isinstance(found.get("ts"), float) else None
    except (OSError, ValueError, IndexError):
        return None


def is_held(folder: Path, rank: int) -> bool:
    """Whether the process that writes it still lives; False also where that cannot be known."""
    return is_held_by_another(_path(folder, rank))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"heartbeat_rank{rank}.jsonl"
