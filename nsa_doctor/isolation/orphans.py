"""Keeps a process from outliving the one that started it."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> bool:
    """Ask the kernel to end this process when its parent ends; False where it cannot be asked.

    A parent that has ended before is not seen: compare `os.getppid()` afterwards.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return False
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return True
