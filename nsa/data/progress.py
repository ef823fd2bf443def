"""Where a loader is: the stage and the source it is busy with, for the one who waits."""

import time


class Progress:
    """Written by the thread that makes batches, read by the one that waits for them."""

    def __init__(self) -> None:
        self._now = ("open", "the data", time.monotonic())

    def at(self, stage: str, source: str) -> None:
        """From here on the loader is at `stage` (open, read, tokenize, pack) of `source`."""
        if self._now[:2] != (stage, source):
            self._now = (stage, source, time.monotonic())

    def done(self) -> None:
        """A document or row is through: what follows at the same stage is timed from zero."""
        self._now = (*self._now[:2], time.monotonic())

    @property
    def now(self) -> tuple[str, str, float]:
        """Stage, source, seconds at it."""
        stage, source, since = self._now
        return stage, source, time.monotonic() - since
