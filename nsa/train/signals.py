"""What signals do to a run: SIGUSR1 writes the stacks; SIGTERM and SIGINT write them, then let the step end and save.

A thread reads the signals, so that the stacks of a main thread stuck in a call are still written.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

STOPPING = (signal.SIGTERM, signal.SIGINT)
_SECONDS_TOGETHER = 3.0  # a launcher passes on what the terminal has sent already

OnSignal = Callable[[signal.Signals], None]


class Signals:
    """While used as a context, `requested` is the number of the signal that asked the run to stop, or 0.

    A second one, or `patience_seconds` without an end, leaves at once and saves nothing.
    """

    def __init__(self, on_signal: OnSignal, patience_seconds: float) -> None:
        self.requested = 0
        self._on_signal, self._patience = on_signal, patience_seconds
        self._first = 0.0
        self._reader, self._writer = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="nsa signals", daemon=True)
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Signals":
        if self._is_main:  # Python lets no other thread install handlers
            self._writer.setblocking(False)
            self._old_descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            wanted = [each for each in (*STOPPING, signal.SIGUSR1) if signal.getsignal(each) is not signal.SIG_IGN]
            self._old = {number: signal.signal(number, _note) for number in wanted}
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_main:
            for number, handler in self._old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_descriptor)
            self._writer.setblocking(True)
            self._writer.send(b"\0")
            self._thread.join()
        self._reader.close()
        self._writer.close()

    def _listen(self) -> None:
        while True:
            self._reader.settimeout(self._seconds_left())
            try:
                received = self._reader.recv(1)
            except TimeoutError:
                self._leave(f"the step did not end within {self._patience:g} s of the signal")
                return
            if received in (b"", b"\0"):
                return
            self._handle(signal.Signals(received[0]))

    def _handle(self, number: signal.Signals) -> None:
        if number not in STOPPING:
            self._on_signal(number)
        elif not self.requested:
            self.requested, self._first = number, time.monotonic()
            self._on_signal(number)
        elif time.monotonic() - self._first > _SECONDS_TOGETHER:
            self._leave("a second signal came")

    def _seconds_left(self) -> float | None:
        if not self.requested:
            return None
        return max(0.01, self._first + self._patience - time.monotonic())

    def _leave(self, why: str) -> None:
        sys.stderr.write(f"\nleft without saving: {why}; the last checkpoint stands\n")
        sys.stderr.flush()
        os._exit(128 + self.requested)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The thread does the work; a handler has to be there for the signal to reach it."""
