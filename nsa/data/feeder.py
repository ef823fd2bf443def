"""A thread that makes things ahead of time, a few at most, and a wait for the next one that has a limit."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

from nsa.data.errors import DataError, LoaderStalledError
from nsa.data.progress import Progress

_Made = TypeVar("_Made")

AHEAD = 4  # things made before they are asked for
_FAREWELL_SECONDS = 2.0  # a thread inside a blocked read cannot be ended; it ends by itself, or with the process


class Feeder(Generic[_Made]):
    """What `make` yields, made in a thread that starts with the first `next` and ends with `close`.

    What ends `make` early is raised by `next`, then and ever after.
    """

    def __init__(self, make: Callable[[Progress], Iterator[_Made]]) -> None:
        self._make, self._progress = make, Progress()
        self._made: deque[_Made] = deque()
        self._changed = threading.Condition()
        self._ended: BaseException | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def next(self, limit_seconds: float) -> _Made:
        """The next thing; raises LoaderStalledError when it does not come within the limit, and may be called again."""
        began = time.monotonic()
        with self._changed:
            self._start()
            while not self._made:
                if self._is_closed:
                    raise DataError("the loader is closed")
                if self._ended is not None:
                    raise self._ended
                left = began + limit_seconds - time.monotonic()
                if left <= 0:
                    stage, source, seconds = self._progress.now
                    raise LoaderStalledError(stage, min(seconds, time.monotonic() - began), source, limit_seconds)
                self._changed.wait(left)
            self._changed.notify_all()
            return self._made.popleft()

    def close(self) -> None:
        """No more things; waits a little for the thread. May be called twice, and from a signal's handler."""
        with self._changed:
            self._is_closed = True
            self._made.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_FAREWELL_SECONDS)

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._work, name="nsa-data", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        with _Handed(self._end):
            making = self._make(self._progress)
            for made in making:
                if not self._put(made):
                    return
                self._progress.done()
            raise DataError("the data ended, and they should never")

    def _put(self, made: _Made) -> bool:
        with self._changed:
            while len(self._made) >= AHEAD and not self._is_closed:
                self._changed.wait()
            if not self._is_closed:
                self._made.append(made)
                self._changed.notify_all()
            return not self._is_closed

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._ended = error
            self._changed.notify_all()


class _Handed:
    """Hands what is raised inside a `with` to the one who waits for it, who raises it."""

    def __init__(self, receive: Callable[[BaseException], None]) -> None:
        self._receive = receive

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._receive(error)
        return True
