"""Times one call: what the caller's stream sees of it, and how long the device is busy."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from nsa_doctor.core.errors import Caught, attempt


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """Seconds of one call: of the device on the caller's stream, and until it has nothing left to do on any.

    They are the same on a CPU. On a GPU the time in which the call asks for its work is no part of either, as long as
    it is shorter than what keeps the device busy before.
    """

    value: Any
    seen: float
    idle: float


def clocked(run: Callable[[], Any], device: str) -> Clocked:
    """One call, timed by the clock of the wall, on a GPU by events; may raise what the call does.

    A GPU is kept busy first, so that what the call asks of it lies ready when the first event comes.
    """
    if device != "cuda":
        begin = time.perf_counter()
        value = run()
        seconds = time.perf_counter() - begin
        return Clocked(value=value, seen=seconds, idle=seconds)
    before, first, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    matrix = _matrix()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    before.record()
    for _ in range(_PRODUCTS):
        torch.mm(matrix, matrix)
    first.record()
    value = run()
    last.record()
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    return Clocked(value=value, seen=first.elapsed_time(last) / 1000, idle=whole - before.elapsed_time(first) / 1000)


_SIZE, _PRODUCTS = 4096, 4  # about a millisecond on a fast device


@cache
def _matrix() -> torch.Tensor:
    return torch.zeros(_SIZE, _SIZE, dtype=torch.bfloat16, device="cuda")


def megahertz(device: str) -> int | None:
    """The clock of a GPU now, where its driver says so."""
    if device != "cuda":
        return None
    rate = attempt(torch.cuda.clock_rate)
    return None if isinstance(rate, Caught) else int(rate)
