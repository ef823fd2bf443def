"""`python -m nsa.train`: answer signals from the first moment on, and only then load torch, which takes seconds."""

import os
import signal
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def start() -> None:
    """Run the command line of this process and exit."""
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    from nsa.train.command import leave, main  # with torch

    leave(main())


def _leave(number: int, _frame: FrameType | None) -> None:
    """While there is nothing to save: a run that has begun has handlers of its own."""
    os.write(2, b"nsa.train: interrupted before the first step or after the last\n")
    os._exit(128 + number)


if __name__ == "__main__":
    start()
