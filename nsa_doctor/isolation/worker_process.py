"""The parent's side of the one protocol: a request as a line of JSON out, lines of events and one answer in.

`worker/main.py` is the other side. What hangs, dies or is ended there costs one answer and not the doctor.
"""

import contextlib
import itertools
import json
import math
import os
import selectors
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nsa_doctor.core.errors import InternalError, UsageError
from nsa_doctor.core.package import is_doctors
from nsa_doctor.core.signals import raise_if_interrupted
from nsa_doctor.isolation.failures import CrashReport, WorkerDiedError, WorkerHungError, WorkerSlowError
from nsa_doctor.isolation.shared_record import FILE_BYTES, LAST_WILL, SIGHTING, TRAIL, SharedRecord
from nsa_doctor.isolation.start import KeptProcess

STARTUP_SECONDS = 180.0  # for Python and torch alone, before the subject has a say
OWN_SECONDS = 180.0  # without a sign of the subject: imports, comparisons, a machine that is busy
_DUMP_SECONDS = 2.0
_SIGHTING_SECONDS = 5.0
_POLL_SECONDS = 0.5
_ENDING_SECONDS = 10.0  # for a keeper, twice what it may take to end whatever there is
_KEPT_BYTES = 8192
_GARBLED = "wrote into a file descriptor that is not its own, where its answers are read"

Message = dict[str, Any]


class WorkerProcess:
    """One child, asked one thing at a time; `room` is the module there whose `open_room` makes what answers.

    `is_line_recorded`: it writes down every line of the subject before it runs, which takes time. `is_fresh`: it is an
    interpreter of its own, whatever else children are. `under`: the first words of its command, of a program that runs
    the rest. What the subject prints goes nowhere.
    """

    def __init__(
        self,
        room: str = "nsa_doctor.worker.handlers",
        *,
        is_line_recorded: bool = False,
        is_fresh: bool = False,
        under: Sequence[str] = (),
    ) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        questions, self._questions = os.pipe()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._file.seek(self._file.truncate(FILE_BYTES))  # behind the pages come the stacks
        pages = [SharedRecord(self._file.fileno(), number) for number in (TRAIL, SIGHTING, LAST_WILL)]
        self._trail, self._sighting, self._will = pages
        theirs = {"requests": requests, "answers": answers, "questions": questions, "file": self._file.fileno()}
        how = {"is_line_recorded": is_line_recorded, "is_memory_kept": not under}
        words = [json.dumps({**theirs, "room": room, **how})]
        try:
            self._process = KeptProcess(
                "nsa_doctor.worker.main", words, tuple(theirs.values()), answers, is_fresh=is_fresh, under=under
            )
        finally:
            for descriptor in (requests, answers, questions):
                os.close(descriptor)
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._answers, self._process.errors.fileno()):
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._received = self._last_words = b""
        self._event: Message = {}
        self._made: Message = {}
        self._ending = threading.Lock()
        self._is_closed = False
        self.ended: Message = {}  # what the keeper said at the end
        self.longest_seconds = 0.0  # between two messages of the last request

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        request: Message,
        seconds: float,
        at_most: float = math.inf,
        listen: Callable[[Message], object] = lambda event: None,
    ) -> Message:
        """The answer to one request; every event the child reports on the way restarts the clock, up to `at_most`.

        Until the first event it may take `startup_seconds` of the request, and then `making_seconds` until the next.
        The seconds are the subject's: while the child is seen at the doctor's own work, it may take OWN_SECONDS, and
        while it compiles `compile_seconds` of the request, between two other events; those count for neither limit.
        Raises WorkerHungError, WorkerDiedError or WorkerSlowError, after which the child is gone; KeyboardInterrupt;
        UsageError for a request that cannot be met, and InternalError when the doctor's own code fails there.
        """
        self._event, self.longest_seconds = {}, 0.0
        with contextlib.suppress(BrokenPipeError):  # its end is reported where its answers are read
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        allowed = float(request.get("startup_seconds", seconds))
        begin = heard = time.monotonic()
        compiled = 0.0
        while True:
            for message in self._messages(min(heard + allowed, begin + at_most)):
                if message.get("event") == "compiling":
                    passed = time.monotonic() - heard
                    if compiled + passed <= float(request.get("compile_seconds", 0.0)):
                        compiled, begin, heard = compiled + passed, begin + passed, heard + passed
                        listen({**message, "seconds": compiled})
                    continue
                compiled = 0.0
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - heard)
                heard = time.monotonic()
                if "answer" in message:
                    return _checked(message["answer"])
                is_making = message["event"] == "started"
                allowed = float(request.get("making_seconds", seconds)) if is_making else seconds
                self._event = message
                self._made = message if message["event"] == "made" else self._made
                listen(message)
            if time.monotonic() >= heard + allowed:
                sighting = self._seen()
                if not _is_own_work(sighting) or allowed >= OWN_SECONDS:
                    raise self._hung(allowed, sighting, compiled)
                allowed = min(2 * allowed + _SIGHTING_SECONDS, OWN_SECONDS)
            if time.monotonic() >= begin + at_most:
                self.close()
                raise WorkerSlowError(at_most)

    def close(self) -> None:
        """End the child and everything it started; `ended` says how it did."""
        self.kill()
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
        give_up = time.monotonic() + _ENDING_SECONDS
        is_open = True
        while is_open and not self.ended and time.monotonic() < give_up:
            is_open = self._received_more(_POLL_SECONDS)
            while (line := self._line()) is not None:
                self._keep_if_end(_message(line) or {})
        self._process.wait()
        self._selector.close()
        for descriptor in (self._requests, self._answers, self._questions):
            os.close(descriptor)
        for held in (self._process.errors, self._file, self._trail, self._sighting, self._will):
            held.close()

    def kill(self) -> None:
        """End it from any thread: who waits for its answer hears that it died, and closes it."""
        with self._ending:
            if not self._is_closed:
                self._process.end()

    def _messages(self, deadline: float) -> Iterator[Message]:
        """Wait for output until the deadline; yields events and answers as they come, and raises at the end of them."""
        if threading.current_thread() is threading.main_thread():
            raise_if_interrupted()
        is_open = self._received_more(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        while (line := self._line()) is not None:
            message = _message(line)
            if message is None and line:
                raise self._died(_GARBLED)
            if self._keep_if_end(message or {}):
                raise self._died()
            if message is not None:
                yield message
        if not is_open:  # the keeper is gone, without a word
            raise self._died()

    def _received_more(self, seconds: float) -> bool:
        """Wait so long for output and keep it; False once there can be none any more."""
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, 65536)
            if key.fd != self._answers:
                self._last_words = (self._last_words + data)[-_KEPT_BYTES:]
                if not data:
                    self._selector.unregister(key.fd)
            elif not data:
                return False
            else:
                self._received += data
        return True

    def _line(self) -> bytes | None:
        """The next whole line; what follows it stays, for the next request perhaps."""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        return line

    def _keep_if_end(self, message: Message) -> bool:
        is_end = message.get("event") == "ended"
        self.ended = message if is_end else self.ended
        return is_end

    def _seen(self) -> Message | None:
        """Where a thread of the child's own sees the subject; None when it is not let run."""
        self._sighting.write(None)  # of an earlier look
        try:
            os.write(self._questions, b"?")
        except BrokenPipeError:  # nobody looks there, or the subject has closed what is not its own
            return None
        end = time.monotonic() + _SIGHTING_SECONDS
        while (sighting := self._sighting.read()) is None and time.monotonic() < end:
            if self._is_ended_meanwhile():  # by a person's interruption perhaps
                break
            time.sleep(0.05)
        return sighting

    def _is_ended_meanwhile(self) -> bool:
        return not self._received_more(0.0) or b'"ended"' in self._received

    def _hung(self, seconds: float, sighting: Message | None, compiled: float) -> WorkerHungError:
        sighting = sighting or self._trail.read()  # a signal may wake what it asks, which then goes on
        self._process.show_stacks()
        end, size = time.monotonic() + _DUMP_SECONDS, -1
        while time.monotonic() < end and (size <= FILE_BYTES or os.fstat(self._file.fileno()).st_size != size):
            size = os.fstat(self._file.fileno()).st_size
            time.sleep(0.05)
        failure = WorkerHungError(seconds, self._remains(sighting), compiled)
        self.close()
        return failure

    def _died(self, reason: str = "") -> WorkerDiedError:
        remains = self._remains()
        will = self._will.read() or {}
        self.close()
        return WorkerDiedError(int(self.ended.get("status", -9)), remains, reason or str(will.get("reason", "")))

    def _remains(self, sighting: Message | None = None) -> CrashReport:
        size = os.fstat(self._file.fileno()).st_size
        return CrashReport(
            event=self._event,
            made=self._made,
            sighting=sighting or self._trail.read(),
            dump=os.pread(self._file.fileno(), size - FILE_BYTES, FILE_BYTES).decode(errors="replace"),
            last_words=self._last_words.decode(errors="replace").strip(),
        )


def counting(listen: Callable[[str, int, int], None], expected: int) -> Callable[[Message], None]:
    """A `listen` for `ask` that passes on the text of events `progress`, their number and how many are expected."""
    done = itertools.count(1)

    def tell(event: Message) -> None:
        if event["event"] == "progress":
            number = next(done)
            listen(event["text"], number, max(number, expected))

    return tell


def _is_own_work(sighting: Mapping[str, Any] | None) -> bool:
    """Whether the child was seen, in no pass of the subject and in no code but the doctor's."""
    if sighting is None or sighting.get("phase"):
        return False
    place = sighting.get("place")
    file = str(place.get("file", "")) if isinstance(place, Mapping) else ""
    return not file or is_doctors(file)


def _message(line: bytes) -> Message | None:
    """An event or an answer, or None when the line is neither."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict):
        return None
    is_message = isinstance(message.get("event"), str) or isinstance(message.get("answer"), dict)
    return message if is_message else None


def _checked(answer: Message) -> Message:
    if "usage" in answer:
        raise UsageError(answer["usage"])
    if "broke" in answer:
        raise InternalError(answer["broke"], answer["traceback"])
    return answer
