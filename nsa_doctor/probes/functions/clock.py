"""Times one call: what the caller's stream sees of it, and how long the device is busy."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nsa_doctor.core.errors import Caught, attempt


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """Seconds of one call: as seen on the stream that it was called on, and until the device has nothing left to do.

    They are the same on a CPU.
    """

    value: Any
    seen: float
    idle: float


def clocked(run: Callable[[], Any], device: str) -> Clocked:
    """One call, timed by the clock of the wall, on a GPU by events as benchmarks do; may raise what the call does."""
    if device != "cuda":
        begin = time.perf_counter()
        value = run()
        seconds = time.perf_counter() - begin
        return Clocked(value=value, seen=seconds, idle=seconds)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    first.record()
    value = run()
    last.record()
    torch.cuda.synchronize()
    return Clocked(value=value, seen=first.elapsed_time(last) / 1000, idle=time.perf_counter() - begin)


def megahertz(device: str) -> int | None:
    """The clock of a GPU now, where its driver says so."""
    if device != "cuda":
        return None
    rate = attempt(torch.cuda.clock_rate)
    return None if isinstance(rate, Caught) else int(rate)
