"""Makes several calls at a time, each in a process forked from this one."""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.isolation.orphans import die_with


def side_by_side(calls: Sequence[Callable[[], Any]], at_a_time: int) -> list[Any]:
    """What each call returns, in their order; raises ChildProcessError for a process that ends without an answer.

    For a process that has run nothing yet that leaves threads behind.
    """
    here = os.getpid()
    running: dict[int, int] = {}
    waiting = list(enumerate(calls))
    with TemporaryDirectory(prefix="nsa-doctor-") as place:
        files = [Path(place) / str(number) for number in range(len(calls))]
        try:
            while waiting or running:
                while waiting and len(running) < at_a_time:
                    number, call = waiting.pop(0)
                    pid = os.fork()
                    if pid == 0:
                        _answer(call, files[number], here)
                    running[pid] = number
                pid, status = os.wait()
                if pid not in running:  # something else that was started here
                    continue
                number = running.pop(pid)
                if status != 0:
                    code = os.waitstatus_to_exitcode(status)
                    raise ChildProcessError(f"part {number + 1} of {len(calls)} ended with code {code}")
        finally:
            _end(running)
        return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 (our own processes wrote them)


def _answer(call: Callable[[], Any], file: Path, parent: int) -> None:
    """The end of a forked process, which must not go on as the one it was forked from."""
    code = 1
    try:
        die_with(parent)
        told = attempt(lambda: file.write_bytes(pickle.dumps(call())))
        if isinstance(told, Caught):
            sys.stderr.write(told.traceback)
            sys.stderr.flush()
        else:
            code = 0
    finally:
        os._exit(code)


def _end(running: Collection[int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)
