"""Calls into a source of batches, in a thread of their own and with a limit; one that hangs is left behind."""

import multiprocessing
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from nsa_doctor.artifacts.data.workers import stacks_of_children
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frames_of_threads
from nsa_doctor.core.measurement import Place

_PROCESSES = f"{Path(multiprocessing.__file__).parent}/"
_INNERMOST = 4


class TooLate:
    """No answer came within the limit; `where` is the line that is waited at."""

    def __init__(self, where: Place) -> None:
        self.where = where


class Caller:
    """Makes all calls of one loader from one thread, as a training loop does."""

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._others = set(frames_of_threads())
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="nsa-doctor-data", daemon=True)
        self._thread.start()

    def call(self, what: Callable[[], Any], seconds: float) -> Any:
        """The answer, Caught, or TooLate, after which nothing more can be asked of it."""
        self._asked.put(what)
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return TooLate(self.standing())

    def end(self) -> None:
        """The thread ends when it has come back."""
        self._asked.put(None)

    def _work(self) -> None:
        while (what := self._asked.get()) is not None:
            self._answers.put(attempt(what))

    def standing(self) -> Place:
        """The deepest line of the loader's own code, in this thread or in one that it has started."""
        frames = frames_of_threads()
        started = [thread for thread in frames if thread not in self._others and thread != self._thread.ident]
        best, best_key = Place(), (0, 0)
        for thread in (self._thread.ident or 0, *started):
            lines = _lines(frames.get(thread))
            line = self._frames.deepest(lines)
            rank = 0 if line is None else self._frames.rank(line.file)
            key = rank, _blame(is_asking=thread == self._thread.ident, is_waiting=_waits_for_a_thread(lines))
            if line is not None and rank and key > best_key:
                best, best_key = Place(file=line.file, line=line.line, function=line.function), key
        if _waits_for_a_process(_lines(frames.get(self._thread.ident or 0))):
            own = self._frames.of_dump(stacks_of_children())
            if own and self._frames.rank(own[0].file) >= best_key[0]:
                return Place(file=own[0].file, line=own[0].line, function=own[0].function)
        return best


def _blame(*, is_asking: bool, is_waiting: bool) -> int:
    """Of threads that run code of one kind: whoever waits for another thread is held up by that one."""
    if is_waiting:
        return 1 if is_asking else 2
    return 4 if is_asking else 3


def _waits_for_a_thread(lines: list[Line]) -> bool:
    return bool(lines) and lines[0].file in (threading.__file__, queue.__file__)


def _waits_for_a_process(lines: list[Line]) -> bool:
    """Whether the innermost call but those of the system is one of multiprocessing."""
    return any(line.file.startswith(_PROCESSES) for line in lines[:_INNERMOST])


def place_of(caught: Caught, frames: FrameFilter) -> Place:
    """The line of the loader's own code that an exception came from."""
    line = frames.of_traceback(caught.error.__traceback__)
    return Place() if line is None else Place(file=line.file, line=line.line, function=line.function)


def _lines(frame: FrameType | None) -> list[Line]:
    found = []
    while frame is not None:
        found.append(Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name))
        frame = frame.f_back
    return found
