"""`python -m nsa.train`: answer signals from the first moment on, and only then load torch, which takes seconds."""

import os
import signal
import sys
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def start() -> None:
    """Run the command line of this process and exit."""
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    _open_what_is_closed()
    from nsa.train.command import leave, main  # with torch

    leave(main())


def _open_what_is_closed() -> None:
    """A run that was started without standard streams says nothing; no file of its own may become one of them."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 (for as long as the process)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _leave(number: int, _frame: FrameType | None) -> None:
    """While there is nothing to save: a run that has begun has handlers of its own."""
    os.write(2, b"nsa.train: interrupted before the first step or after the last\n")
    os._exit(128 + number)


if __name__ == "__main__":
    start()
