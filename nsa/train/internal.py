"""What the loop takes from CPython that CPython does not promise: its private names are used here alone."""

import sys


def numbers_of_threads() -> list[int]:
    """The number of every thread, of those too that `threading` does not know: `sys._current_frames`, of CPython.

    Public: `threading.enumerate`, which knows no thread that C code started.
    """
    return list(sys._current_frames())
