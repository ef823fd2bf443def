"""A child that is a fork of this process, with what `subprocess.Popen` offers for a program of its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import IO, NoReturn

from nsa_doctor.core import forks as forks  # takes note of every fork from now on
from nsa_doctor.core.errors import Caught, attempt

_BLINK = 0.02  # seconds between two looks at whether it has ended


class ForkedProcess:
    """Runs `call` in a session of its own and ends with it; its standard streams lead nowhere, but for errors.

    They go to `errors`, or where there is none to `stderr`, to be read here. Of the files that are open here it keeps
    `kept`. For a process whose other threads hold nothing that `call` needs.
    """

    def __init__(self, call: Callable[[], object], kept: Collection[int], errors: IO[bytes] | None = None) -> None:
        self.returncode: int | None = None
        self.stderr: IO[bytes] | None = None
        self._lock = threading.Lock()
        if errors is not None:
            self.pid = _forked(call, kept, errors.fileno())
            return
        reading, writing = os.pipe()
        self.pid = _forked(call, kept, writing)
        os.close(writing)
        self.stderr = os.fdopen(reading, "rb", buffering=0)

    def poll(self) -> int | None:
        """Its exit code, or less than 0 for a signal; None while it lives."""
        with self._lock:  # who ends it and who waits for its answer may be two threads
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raises subprocess.TimeoutExpired after `timeout` seconds."""
        begin = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() >= begin + timeout:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_BLINK)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _forked(call: Callable[[], object], kept: Collection[int], errors: int) -> int:
    """The number of the fork."""
    pid = os.fork()
    if pid == 0:
        _become(call, kept, errors)
    return pid


def _become(call: Callable[[], object], kept: Collection[int], errors: int) -> NoReturn:
    """In the fork: no way leads back to what it was forked from."""
    code = 1
    try:
        ended = attempt(lambda: _live(call, kept, errors))
        if not isinstance(ended, Caught):
            code = 0
        elif isinstance(ended.error, SystemExit) and isinstance(ended.error.code, int | None):
            code = ended.error.code or 0
        else:
            is_message = isinstance(ended.error, SystemExit)  # in words
            sys.stderr.write(f"{ended.error}\n" if is_message else ended.traceback)
            sys.stderr.flush()
    finally:
        os._exit(code)


def _live(call: Callable[[], object], kept: Collection[int], errors: int) -> None:
    """Call with what a new program would have."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, target in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(target, number)
    _close_all_but(kept)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    call()


def _close_all_but(kept: Collection[int]) -> None:
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
