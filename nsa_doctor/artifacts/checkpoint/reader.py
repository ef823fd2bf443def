"""Reads checkpoints from outside: one process for each, ended when it overruns, and what it said as a record."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.record import Activation, Reading
from nsa_doctor.core.package import PACKAGE_ROOT

_END_SECONDS = 2.0
_SPARE_SECONDS = 5.0  # for Python and numpy


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What to look for in a checkpoint, and the seconds it may take; `pattern` None finds gates by themselves.

    With `wants_shapes` the shapes of all tensors are read too.
    """

    pattern: str | None = None
    num_branches: int = 3
    activation: Activation | None = None
    seed: int = 0
    seconds: float = 60.0
    wants_shapes: bool = False


class ReaderInternalError(Exception):
    """The doctor's own code failed in the child."""

    def __init__(self, sentence: str, traceback: str) -> None:
        super().__init__(sentence)
        self.traceback = traceback


def read_checkpoint(path: str, request: ReadRequest, since: str | None = None) -> Reading:
    """What the file or folder holds, and with `since` how far its gates went since an earlier checkpoint.

    Raises ReaderInternalError where the doctor's own code fails, and KeyboardInterrupt.
    """
    asked = json.dumps({"path": path, "since": since, **asdict(request)}) + "\n"
    child = subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, "-P", "-c", _PROGRAM, str(PACKAGE_ROOT.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        told, errors = child.communicate(asked, timeout=request.seconds + _SPARE_SECONDS)
    except subprocess.TimeoutExpired:
        sentence = f"{quoted(path)} is not read after {request.seconds:g} s; --timeout allows more"
        return Reading(path=path, fault="limit", sentence=sentence)
    finally:
        _end(child)
    return _answer(path, child.returncode, told, errors)


def _end(child: subprocess.Popen[str]) -> None:
    """End it, and wait for no more than a moment: what hangs in the kernel cannot be ended at all."""
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_SECONDS)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _answer(path: str, status: int, told: str, errors: str) -> Reading:
    try:
        answer = json.loads(told)
    except ValueError:
        if status > 0:
            raise ReaderInternalError(f"the process that reads ends with exit code {status}", errors) from None
        sentence = f"{quoted(path)} takes more than it may: the process that reads it died by signal {-status}"
        return Reading(path=path, fault="limit", sentence=sentence)
    if "broke" in answer:
        raise ReaderInternalError(answer["broke"], answer["traceback"])
    return Reading.from_json(answer["read"])


def read_checkpoints(paths: Sequence[str], request: ReadRequest) -> tuple[Reading, ...]:
    """Every checkpoint, each compared with the one before it where both could be read."""
    readings: list[Reading] = []
    for path in paths:
        since = readings[-1].path if readings and readings[-1].fault is None else None
        readings.append(read_checkpoint(path, request, since))
    return tuple(readings)


_PROGRAM = """
import os, sys
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.putenv(name, "1")  # a thread is a process that may not be started
root = sys.argv.pop()
root in sys.path or sys.path.insert(0, root)
from nsa_doctor.worker.checkpoint_main import main
main()
"""
