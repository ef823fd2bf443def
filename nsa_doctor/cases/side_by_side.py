"""Makes several calls at a time, each in a process forked from this one."""

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nsa_doctor.runner import Caught, attempt


def side_by_side(calls: Sequence[Callable[[], Any]], at_a_time: int) -> list[Any]:
    """What each call returns, in their order; raises ChildProcessError for a process that ends without an answer.

    For a process that has run nothing yet that leaves threads behind.
    """
    running: dict[int, int] = {}
    waiting = list(enumerate(calls))
    with TemporaryDirectory(prefix="nsa-doctor-") as place:
        files = [Path(place) / str(number) for number in range(len(calls))]
        while waiting or running:
            while waiting and len(running) < at_a_time:
                number, call = waiting.pop(0)
                pid = os.fork()
                if pid == 0:
                    _answer(call, files[number])
                running[pid] = number
            pid, status = os.wait()
            number = running.pop(pid)
            if status != 0:
                code = os.waitstatus_to_exitcode(status)
                raise ChildProcessError(f"part {number + 1} of {len(calls)} ended with code {code}")
        return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 (our own processes wrote them)


def _answer(call: Callable[[], Any], file: Path) -> None:
    """The end of a forked process, which must not go on as the one it was forked from."""
    told = attempt(lambda: file.write_bytes(pickle.dumps(call())))
    if isinstance(told, Caught):
        sys.stderr.write(told.traceback)
        sys.stderr.flush()
    os._exit(1 if isinstance(told, Caught) else 0)
