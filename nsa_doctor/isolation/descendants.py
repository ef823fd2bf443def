"""Finds and ends the processes that a process of the doctor's has started, however far they have gone from it."""

import ctypes
import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_LONGEST_SECONDS = 5.0
_LOOK_SECONDS = 0.01
_LONGEST_COMMAND = 80


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    started: int  # in ticks since the start of the machine: with the number it is unique
    state: str


def adopt_orphans() -> None:
    """From now on processes below this one become its children when their parent ends, where the kernel knows how."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(leader: int) -> dict[str, int]:
    """End all processes below this one, of which `leader` was the first and has ended.

    Returns how many of each command had left the session of `leader`, where an end of that session misses them.
    """
    if not _PROC.is_dir() or sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        return {}
    begin, seen = time.monotonic(), dict[tuple[int, int], str]()
    while _has_children() and time.monotonic() < begin + _LONGEST_SECONDS:
        for process in descendants():
            if process.session != leader:
                seen.setdefault((process.pid, process.started), _command(process.pid))
            _end(process)
        time.sleep(_LOOK_SECONDS)
    return dict(Counter(seen.values()))


def descendants() -> list[_Process]:
    """Every process below this one that still runs."""
    children: dict[int, list[_Process]] = {}
    for process in filter(None, (_read(int(each)) for each in os.listdir(_PROC) if each.isdecimal())):
        children.setdefault(process.parent, []).append(process)
    found, waiting = list[_Process](), [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += [process for process in below if process.state not in "ZX"]
        waiting += [process.pid for process in below]
    return found


def _has_children() -> bool:
    """Whether there are any, those that have ended taken away; all that is below this process ends up among them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _read(pid: int) -> _Process | None:
    with suppress(OSError, ValueError, IndexError):
        words = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold anything
        return _Process(pid, int(words[1]), int(words[3]), int(words[19]), words[0].decode())
    return None


def _command(pid: int) -> str:
    raw = b""
    with suppress(OSError):
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    words = raw.decode(errors="replace").replace("\0", " ").strip()
    own = Path(f"/proc/{os.getpid()}/cmdline").read_bytes()
    if raw == own:
        return "a fork of its process"
    return words[:_LONGEST_COMMAND] or "a process without a name"


def _end(process: _Process) -> None:
    """Kill it, and nothing that has got its number since."""
    with suppress(OSError):
        number = os.pidfd_open(process.pid)
        try:
            again = _read(process.pid)
            if again is not None and again.started == process.started:
                signal.pidfd_send_signal(number, signal.SIGKILL)
        finally:
            os.close(number)
