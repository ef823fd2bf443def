"""What a person sees while a run goes on: one line that renews itself on a terminal, plain lines in a log."""

import os
import shutil
import sys
import time
from typing import Protocol, runtime_checkable

from nsa.train.record import StepRecord

_SECONDS_BETWEEN = 0.1
_SMOOTHING = 0.9


@runtime_checkable
class Stream(Protocol):
    """What a line is written to."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Progress:
    """Writes to `stream`, and goes silent when there is none or nobody reads it any more."""

    def __init__(self, stream: Stream | None, num_steps: int, log_every: int) -> None:
        self._stream, self._num_steps, self._log_every = stream, num_steps, log_every
        self._is_terminal = _is_terminal(stream)
        self._has_line, self._shown_at = False, 0.0
        self._seconds_per_step, self._num_seen = 0.0, 0

    def step(self, record: StepRecord, memory_bytes: int | None) -> None:
        """A step was made."""
        self._num_seen += 1
        if self._num_seen <= 2:  # the first step also warms up, and may compile
            self._seconds_per_step = record.seconds
        else:
            self._seconds_per_step += (1 - _SMOOTHING) * (record.seconds - self._seconds_per_step)
        is_due = record.step % self._log_every == 0 or record.step in (1, self._num_steps)
        now = time.monotonic()
        if is_due:
            self.say(self._line(record, memory_bytes))
        elif self._is_terminal and now - self._shown_at >= _SECONDS_BETWEEN:
            self._shown_at, self._has_line = now, True
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{self._line(record, memory_bytes)[:width]:<{width}}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        """Take the line that renews itself away."""
        if self._has_line:
            self._write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self._has_line = False

    def _line(self, record: StepRecord, memory_bytes: int | None) -> str:
        seconds_left = (self._num_steps - record.step) * self._seconds_per_step
        parts = [
            f"step {record.step:04d}/{self._num_steps}",
            f"loss {record.loss:.4f}",
            f"lr {record.learning_rate:.2e}",
            f"grad {record.gradient_norm:.2f}",
            f"toks/s {record.tokens_per_second:,.0f}",
            *([] if memory_bytes is None else [f"mem {memory_bytes / 2**20:,.0f} MiB"]),
            f"ETA {_clock(seconds_left)}",
        ]
        return " | ".join(parts)

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a full disk under a log, a closed stream
            self._stream, self._is_terminal = None, False


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _is_terminal(stream: Stream | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def quiet_exit() -> None:
    """Keep Python from complaining at its exit about a standard output that nobody reads."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
