"""Calls made in a copy of this process, which has another number and may have another time."""

import json
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from unittest.mock import patch

import torch

from nsa_doctor.core.errors import Caught, attempt

_CHUNK = 1 << 16
_FDS = "/proc/self/fd"


def in_fork(call: Callable[[], dict[str, Any]], seconds: int) -> dict[str, Any] | None:
    """The call's answer, as JSON, from a copy of this process, ended after so many seconds; None where it gave none.

    For a process that has touched no GPU. The copy computes with one thread, as others were not copied.
    """
    reading, writing = os.pipe()
    number = os.fork()
    if number == 0:
        _answer(call, writing, seconds)
    os.close(writing)
    try:
        text = _read(reading, seconds)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    answer = attempt(lambda: json.loads(text))
    return None if isinstance(answer, Caught) else answer


@contextmanager
def with_another_number(further: int) -> Iterator[None]:
    """The process has a number so much greater for who asks `os`: those of its copies may be odd all of them."""
    number = os.getpid() + further
    with patch.object(os, "getpid", lambda: number):
        yield


@contextmanager
def at_another_time(seconds: float) -> Iterator[None]:
    """Clocks that are asked for by their module, `time`, are so many seconds ahead."""
    names = ("time", "monotonic", "perf_counter", "process_time")
    ahead: dict[str, Any] = {}
    for name in names:
        clock, clock_ns = getattr(time, name), getattr(time, f"{name}_ns")
        ahead[name] = lambda clock=clock: clock() + seconds
        ahead[f"{name}_ns"] = lambda clock=clock_ns: clock() + int(seconds * 1e9)
    with patch.multiple(time, **ahead):
        yield


def _answer(call: Callable[[], dict[str, Any]], writing: int, seconds: int) -> NoReturn:
    """In the copy: no way leads back to what it was copied from."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)  # it ends, though its parent may not be there to end it
        _cut_pipes(writing)
        torch.set_num_threads(1)
        answer = attempt(call)
        if not isinstance(answer, Caught):
            os.write(writing, json.dumps(answer).encode()[:_CHUNK])
    finally:
        os._exit(0)


def _cut_pipes(kept: int) -> None:
    """Have what the process this was copied from says to others be said to nobody."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(_FDS) if os.path.isdir(_FDS) else []:
        with suppress(OSError):
            if int(name) != kept and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                os.dup2(nothing, int(name))


def _read(reading: int, seconds: float) -> bytes:
    """Everything written until the other end is closed, or time is up."""
    text, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, _CHUNK)
        if not part:
            break
        text += part
    return text
