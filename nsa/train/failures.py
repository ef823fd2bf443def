"""How a run ends otherwise than at its last step: one sentence and an exit code for each kind.

0 trained to the end · 1 an error nobody foresaw (with its traceback) · 2 refused before the first step · 3 a loss or
gradient that is not finite · 4 no more data · 5 a file that cannot be written · 6 another process of the run, or
processes that differ · 7 out of memory · 130 and 143 saved and left after SIGINT and SIGTERM: `--resume auto` goes on.
"""

import signal


class TrainError(Exception):
    """A run that ended early; the message is one sentence, `code` the exit code."""

    code = 1


class RefusedError(TrainError):
    """What was asked for cannot be; nothing was written."""

    code = 2


class NotFiniteError(TrainError):
    """A loss or a gradient is not finite; the optimizer has not touched the weights since."""

    code = 3


class OutOfDataError(TrainError):
    """The loader failed or ended."""

    code = 4


class CannotWriteError(TrainError):
    """A file or folder of the run cannot be written."""

    code = 5


class RankError(TrainError):
    """Another process of the run ended, or holds other parameters."""

    code = 6


class OutOfMemoryError(TrainError):
    """The device has no memory left."""

    code = 7


class StoppedError(TrainError):
    """A signal asked the run to stop; it saved and left."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + number
        self.name = signal.Signals(number).name
