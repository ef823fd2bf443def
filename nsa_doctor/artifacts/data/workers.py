"""Where the processes stand that a loader has started: asked by a signal, answered in stacks on standard error."""

import multiprocessing
import os
import re
import signal
import time
from contextlib import suppress

_STDERR = 2
_SECONDS_TO_ANSWER, _LOOK_SECONDS = 1.0, 0.02
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


def stacks_of_children() -> str:
    """What they write of themselves; nothing of one that has not learnt to, as of another language or a fresh start.

    A process that was forked writes its stacks at SIGUSR1 where its parent had faulthandler do so, and to the same
    place, from which they are read again: that has to be a file.
    """
    asked = [child.pid for child in multiprocessing.active_children() if child.pid and _answers(child.pid)]
    try:
        start = os.fstat(_STDERR).st_size
        os.pread(_STDERR, 0, start)
    except OSError:
        return ""
    for pid in asked:
        with suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    return _written_since(start) if asked else ""


def _written_since(start: int) -> str:
    """All that was written since, once nothing more comes."""
    size, give_up = start, time.monotonic() + _SECONDS_TO_ANSWER
    while time.monotonic() < give_up:
        time.sleep(_LOOK_SECONDS)
        before, size = size, os.fstat(_STDERR).st_size
        if size > start and size == before:
            break
    return os.pread(_STDERR, size - start, start).decode("utf-8", errors="replace")


def _answers(pid: int) -> bool:
    """Whether the signal does anything but end it; False where the system does not say."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = _CAUGHT.search(file.read())
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (signal.SIGUSR1 - 1) & 1)
