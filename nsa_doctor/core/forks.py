"""Whether this process is a fork of one that had loaded torch, whose threads are not there to be waited for."""

import os
import sys

_IS_FORK = {"of torch": False}


def has_no_threads() -> bool:
    """Whether torch must keep to one thread here: more would be waited for without an end."""
    return _IS_FORK["of torch"]


def _note_fork() -> None:
    _IS_FORK["of torch"] |= "torch" in sys.modules


os.register_at_fork(after_in_child=_note_fork)
