"""What Ctrl-C, SIGTERM and SIGHUP do: the first ends the work early, and none disturbs the report."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received: list[int] = []


def leave_on_signals() -> None:
    """Until there is work to keep: one sentence, and the exit code of the signal."""
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)


def interrupt_on_signals() -> None:
    """From now on the first signal raises KeyboardInterrupt, and those after it are ignored."""
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def raise_if_interrupted() -> None:
    """For loops that go on for long: what came up in a finalizer or a callback was swallowed there by Python."""
    if _received:
        raise KeyboardInterrupt


def ignore_signals() -> None:
    """Let a report be written whole; another thread than the main one may not, and is not interrupted."""
    if threading.current_thread() is threading.main_thread():
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def put_back() -> Iterator[None]:
    """Afterwards signals do what they did before, in this process and in those that it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None was set by code in C, and cannot be set again
                signal.signal(number, handler)


def exit_code() -> int:
    """128 and the number of the signal that ended the work; Ctrl-C when none is known."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def _leave(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"nsa-doctor: interrupted\n")
    os._exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    ignore_signals()
    if not _is_swallowed(frame):
        raise KeyboardInterrupt


def _is_swallowed(frame: FrameType | None) -> bool:
    """Whether what is raised here gets no further: a callback of the garbage collector runs, as Hypothesis has one."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False
