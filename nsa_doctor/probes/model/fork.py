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

from nsa_doctor.core.endings import end_of
from nsa_doctor.core.errors import Caught, attempt

_CHUNK = 1 << 16
_FDS = "/proc/self/fd"
_RAISED = 113  # the exit code of a copy whose call raised
_OURS = (0, _RAISED, -signal.SIGALRM)


class CopyDiedError(Exception):
    """A copy of this process did not live to answer: `status` is its exit code, or less than 0 for a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a copy of the process {end_of(status)}")
        self.status = status


def in_fork(call: Callable[[], dict[str, Any]], seconds: int) -> dict[str, Any] | None:
    """The call's answer, as JSON, from a copy of this process, ended after so many seconds; None where it gave none.

    For a process that has touched no GPU. The copy computes with one thread, as others were not copied. Raises
    CopyDiedError where the call ended it.
    """
    reading, writing = os.pipe()
    number = os.fork()
    if number == 0:
        _answer(call, writing, seconds)
    os.close(writing)
    try:
        text, is_in_time = _read(reading, seconds)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    if is_in_time and not text and status not in _OURS:
        raise CopyDiedError(status)
    answer = attempt(lambda: json.loads(text))
    return None if isinstance(answer, Caught) else answer


@contextmanager
def with_another_number(further: int) -> Iterator[None]:
    """The process has a number so much greater for who asks `os`: those of its copies may be odd all of them."""
    with with_number(os.getpid() + further):
        yield


@contextmanager
def with_number(number: int) -> Iterator[None]:
    """The process has this number for who asks `os`, and is the one that a signal to it reaches."""
    own, kill = os.getpid(), os.kill
    send: Callable[[int, int], None] = lambda to, sent: kill(own if to == number else to, sent)  # noqa: E731
    with patch.multiple(os, getpid=lambda: number, kill=send):
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
    code = _RAISED
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)  # it ends, though its parent may not be there to end it
        _cut_pipes(writing)
        torch.set_num_threads(1)
        answer = attempt(call)
        if not isinstance(answer, Caught):
            os.write(writing, json.dumps(answer).encode()[:_CHUNK])
            code = 0
    finally:
        os._exit(code)


def _cut_pipes(kept: int) -> None:
    """Have what the process this was copied from says to others be said to nobody."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(_FDS) if os.path.isdir(_FDS) else []:
        with suppress(OSError):
            if int(name) != kept and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                os.dup2(nothing, int(name))


def _read(reading: int, seconds: float) -> tuple[bytes, bool]:
    """Everything written until the other end is closed, and whether it was before time was up."""
    text, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, _CHUNK)
        if not part:
            return text, True
        text += part
    return text, False
