"""A thread that notices when a step, a batch or a save takes longer than it may, and has the stacks written."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

OnStall = Callable[[str, float], None]


class Watchdog:
    """Calls `on_stall(stage, seconds)` once a stage is older than `seconds`, and again whenever twice as long passed.

    `enter` costs one assignment. Used as a context, it watches inside alone.
    """

    def __init__(self, seconds: float, on_stall: OnStall) -> None:
        self.seconds, self._on_stall = seconds, on_stall
        self._entered: tuple[str, float, float] = ("the start", time.monotonic(), seconds)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nsa watchdog", daemon=True)

    def enter(self, stage: str, seconds: float | None = None) -> None:
        """Work on `stage` begins; it may take the watchdog's seconds, or these."""
        self._entered = (stage, time.monotonic(), seconds or self.seconds)

    def __enter__(self) -> "Watchdog":
        self.enter("the start")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        reported: tuple[float, float] = (0.0, 0.0)  # when the reported stage began, and when it is reported next
        while True:
            stage, since, seconds = self._entered
            limit = reported[1] if reported[0] == since else seconds
            if self._ended.wait(max(0.0, since + limit - time.monotonic())):
                return
            waited = time.monotonic() - since
            if self._entered[1] == since and waited >= limit:
                reported = (since, 2 * waited)
                self._on_stall(stage, waited)
