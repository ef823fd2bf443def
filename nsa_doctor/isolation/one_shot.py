"""One request to a process of its own, which may hang or die over it, and what became of it."""

import itertools
import json
import math
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from nsa_doctor.core.errors import InternalError
from nsa_doctor.core.signals import raise_if_interrupted
from nsa_doctor.isolation.start import AnyProcess, start_child

_SECONDS_TO_DUMP = 1.0
_SECONDS_TO_END = 30.0
_LOOK_SECONDS = 0.5
_LONGEST_TAIL = 65_536


@dataclass(frozen=True, kw_only=True)
class OneShotResult:
    """Its answer, or None and how the process ended: its exit code, None where it did not end, and its last words.

    `was_late`: it was ended, for it took too long or gave no sign of life.
    """

    answer: dict[str, Any] | None
    code: int | None = None
    last_words: str = ""
    was_late: bool = False


def counting(listen: Callable[[str, int, int], None], expected: int) -> Callable[[str], None]:
    """A `tell` that passes on what was said, how many things were, and how many of how many are expected."""
    done = itertools.count(1)

    def tell(told: str) -> None:
        number = next(done)
        listen(told, number, max(number, expected))

    return tell


def run_one_shot(
    module: str,
    request: Mapping[str, Any],
    tell: Callable[[str], None],
    *,
    patience: float,
    at_most: float = math.inf,
) -> OneShotResult:
    """Have a module's `main`, which calls `errand_room.serve`, meet the request; `tell` is given what it tells.

    It is ended after `patience` seconds without a sign of life, or `at_most` in all. Raises KeyboardInterrupt, and
    InternalError when the doctor's own code fails there.
    """
    with tempfile.TemporaryFile() as errors:
        child, said = _start(module, request, errors)
        try:
            answer, was_late = _heard(child, said, tell, patience, at_most)
        finally:
            _end(child)
        if answer is None:
            return OneShotResult(answer=None, code=child.returncode, last_words=_tail(errors), was_late=was_late)
    if "broke" in answer:
        raise InternalError(answer["broke"], answer["traceback"])
    return OneShotResult(answer=answer)


def _start(module: str, request: Mapping[str, Any], errors: IO[bytes]) -> tuple[AnyProcess, IO[str]]:
    """The process, and the lines that it says."""
    reading, writing = os.pipe()
    try:
        child = start_child(module, [json.dumps(request), str(writing)], (writing,), errors)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, os.fdopen(reading, encoding="utf-8")


def _heard(
    child: AnyProcess, stream: IO[str], tell: Callable[[str], None], patience: float, at_most: float
) -> tuple[dict[str, Any] | None, bool]:
    """Its answer, None when it dies before; and whether it gives no sign of life, or takes too long."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_forward, args=(stream, lines), daemon=True).start()
    began = heard = time.monotonic()
    while time.monotonic() < min(heard + patience, began + at_most):
        raise_if_interrupted()
        try:
            line = lines.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            return None, False
        heard = time.monotonic()
        said: dict[str, Any] = json.loads(line)
        if "answer" in said:
            answer: dict[str, Any] = said["answer"]
            return answer, False
        if "told" in said:
            tell(said["told"])
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGUSR1)  # where is it?
        time.sleep(_SECONDS_TO_DUMP)
    return None, True


def _forward(stream: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
    with suppress(ValueError, OSError), stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _end(child: AnyProcess) -> None:
    """Nothing that it started is left."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_SECONDS_TO_END)


def _tail(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LONGEST_TAIL))
    return errors.read().decode("utf-8", errors="replace")
