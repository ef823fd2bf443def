"""A child process that runs the subject, so that a hang, a crash or a kill costs one answer and not the doctor."""

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsa_doctor.core.package import PACKAGE_ROOT
from nsa_doctor.isolation.shared_record import FILE_BYTES, SIGHTING, TRAIL, SharedRecord
from nsa_doctor.isolation.start import start_child

STARTUP_SECONDS = 180.0  # for Python and torch alone, before the subject has a say
OWN_SECONDS = 180.0  # without a sign of the subject: imports, comparisons, a machine that is busy
_DUMP_SECONDS = 2.0
_SIGHTING_SECONDS = 3.0
_POLL_SECONDS = 0.5
_KEPT_BYTES = 8192
_OURS = f"{PACKAGE_ROOT}{os.sep}"


@dataclass(frozen=True, kw_only=True)
class CrashReport:
    """What is left of a child that gave no answer.

    The last event it reported, the module it had made, where it was seen or last wrote that it was, and the stacks of
    all threads as faulthandler writes them.
    """

    event: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    sighting: Mapping[str, Any] | None = None
    dump: str = ""
    last_words: str = ""


class WorkerHungError(Exception):
    """No answer in time."""

    def __init__(self, seconds: float, crash: CrashReport) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds, self.crash = seconds, crash


class WorkerSlowError(Exception):
    """The child was at work, as its events showed, but the whole answer took longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not finished within {seconds:g} s")
        self.seconds = seconds


class WorkerDiedError(Exception):
    """The process ended before it answered: by a signal (negative `status`) or by an exit code."""

    def __init__(self, status: int, crash: CrashReport) -> None:
        self.status, self.crash = status, crash
        super().__init__(self.sentence)

    @property
    def sentence(self) -> str:
        """How it ended."""
        if self.status >= 0:
            return f"the process ended with exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "unknown"
        hint = ", with which the system also ends what takes too much memory" if name == "SIGKILL" else ""
        return f"the process died by signal {-self.status} ({name}{hint})"


class WorkerGarbledError(WorkerDiedError):
    """What came through the pipe of answers was none; the child was ended."""

    @property
    def sentence(self) -> str:
        """What it did."""
        return "the process wrote into a file descriptor that is not its own, where its answers are read"


class WorkerDeafError(WorkerDiedError):
    """The child closed the pipe its answers come through, and lived on until it was ended."""

    @property
    def sentence(self) -> str:
        """What it did."""
        return "the process closed file descriptors that are not its own, and with them the way its answers come"


class WorkerProcess:
    """One child, asked one thing at a time over pipes of its own; what the subject prints goes nowhere.

    `is_line_recorded`: it writes down every line of the subject before it runs, which takes time.
    """

    def __init__(self, is_line_recorded: bool = False) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        questions, self._questions = os.pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._pages = tempfile.TemporaryFile()  # noqa: SIM115 (likewise)
        self._pages.truncate(FILE_BYTES)
        self._trail, self._sighting = (SharedRecord(self._pages.fileno(), number) for number in (TRAIL, SIGHTING))
        given = (requests, answers, self._dump.fileno(), questions, self._pages.fileno())
        words = [*map(str, given), "trailed" if is_line_recorded else "untrailed"]
        self._process = start_child("nsa_doctor.worker.main", words, given)
        for descriptor in (requests, answers, questions):
            os.close(descriptor)
        assert self._process.stderr is not None
        self._errors = self._process.stderr.fileno()
        self._received = b""
        self._last_words = b""
        self._event: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        self._is_closed = False
        self.longest_seconds = 0.0  # between two messages of the last request

    def ask(self, request: dict[str, Any], seconds: float, at_most: float = math.inf) -> dict[str, Any]:
        """The answer to one request; every event the child reports on the way restarts the clock, up to `at_most`.

        Until the first event it may take `startup_seconds` of the request, and then `making_seconds` until the next.
        The seconds are the subject's: while the child is seen at the doctor's own work, it may take OWN_SECONDS.
        Raises WorkerHungError, WorkerDiedError or WorkerSlowError, after which the child is gone.
        """
        self._event = {}
        self.longest_seconds = 0.0
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._died() from None
        allowed = float(request.get("startup_seconds", seconds))
        begin = heard = time.monotonic()
        while True:
            for line in self._lines(heard + allowed):
                message = _message(line)
                if message is None:
                    raise self._garbled()
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - heard)
                heard = time.monotonic()
                if "event" not in message:
                    return message
                is_making = message["event"] == "started"
                allowed = float(request.get("making_seconds", seconds)) if is_making else seconds
                self._event = message
                self._made = message if message["event"] == "made" else self._made
            if time.monotonic() >= heard + allowed:
                sighting = self._seen()
                if not _is_own_work(sighting) or allowed >= OWN_SECONDS:
                    raise self._hung(allowed, sighting)
                allowed = min(2 * allowed + _SIGHTING_SECONDS, OWN_SECONDS)
            if time.monotonic() >= begin + at_most:
                self.close()
                raise WorkerSlowError(at_most)

    def close(self) -> None:
        """End the child and everything it started."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        for descriptor in (self._requests, self._answers, self._questions):
            os.close(descriptor)
        assert self._process.stderr is not None
        for held in (self._process.stderr, self._dump, self._pages, self._trail, self._sighting):
            held.close()

    def _lines(self, deadline: float) -> Iterator[bytes]:
        """Wait for output until the deadline; yields whole lines of answers as they come."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self._errors, selectors.EVENT_READ)
            ready = selector.select(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        if not ready and self._process.poll() is not None:
            raise self._died()  # a process the subject forked may hold the pipe open
        for key, _ in ready:
            data = os.read(key.fd, 65536)
            if key.fd == self._errors:
                self._last_words = (self._last_words + data)[-_KEPT_BYTES:]
                if not data:
                    time.sleep(0.01)  # standard error was closed; the pipe of answers decides
            elif not data:
                raise self._died()
            else:
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        yield from lines

    def _hung(self, seconds: float, sighting: dict[str, Any] | None) -> WorkerHungError:
        self._process.send_signal(signal.SIGUSR1)  # the child's faulthandler writes all stacks
        end = time.monotonic() + _DUMP_SECONDS
        size = -1
        while time.monotonic() < end and (size <= 0 or os.fstat(self._dump.fileno()).st_size != size):
            size = os.fstat(self._dump.fileno()).st_size
            time.sleep(0.05)
        failure = WorkerHungError(seconds, self._remains(sighting))
        self.close()
        return failure

    def _seen(self) -> dict[str, Any] | None:
        """Where a thread of the child's own sees the subject; None when it is not let run."""
        self._sighting.write(None)  # of an earlier look
        with contextlib.suppress(BrokenPipeError):  # the subject has closed what is not its own
            os.write(self._questions, b"?")
        end = time.monotonic() + _SIGHTING_SECONDS
        while (sighting := self._sighting.read()) is None and time.monotonic() < end:
            if self._process.poll() is not None:  # ended meanwhile, by a person's interruption perhaps
                break
            time.sleep(0.05)
        return sighting

    def _died(self) -> WorkerDiedError:
        try:
            failure = WorkerDiedError(self._process.wait(timeout=5), self._remains())
        except subprocess.TimeoutExpired:
            failure = WorkerDeafError(self.kill(), self._remains())
        self.close()
        return failure

    def _garbled(self) -> WorkerGarbledError:
        failure = WorkerGarbledError(self.kill(), self._remains())
        self.close()
        return failure

    def _remains(self, sighting: dict[str, Any] | None = None) -> CrashReport:
        self._dump.seek(0)
        return CrashReport(
            event=self._event,
            made=self._made,
            sighting=sighting or self._trail.read(),
            dump=self._dump.read().decode(errors="replace"),
            last_words=self._last_words.decode(errors="replace").strip(),
        )

    def kill(self) -> int:
        """End the process and everything it started, and how it ended; who waits for its answer hears that it died."""
        with contextlib.suppress(ProcessLookupError):  # the group is gone with its last process
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


def _is_own_work(sighting: Mapping[str, Any] | None) -> bool:
    """Whether the child was seen, in no pass of the subject and in no code but the doctor's."""
    if sighting is None or sighting.get("phase"):
        return False
    place = sighting.get("place")
    file = str(place.get("file", "")) if isinstance(place, Mapping) else ""
    return not file or file.startswith(_OURS)


def _message(line: bytes) -> dict[str, Any] | None:
    """An event or an answer, or None when the line is neither."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict) or not message:
        return None
    is_answer = all(isinstance(value, (dict, str)) for value in message.values())
    return message if "event" in message or is_answer else None
