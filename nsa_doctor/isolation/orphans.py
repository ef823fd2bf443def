"""Keeps a process from outliving the one that started it."""

import ctypes
import os
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


def die_with(parent: int) -> None:
    """In a process forked from this one: the kernel, where it can be asked, ends it when that one ends."""
    end_with_parent()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)
