"""The child's side of the one protocol: it reads requests, has its room answer, and says where it is when asked.

A room is a module whose `open_room` takes the channel and returns what answers requests.
"""

import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.own_nsa import let_ours_win
from nsa_doctor.isolation.openmp import (
    allocate_each_tensor,
    compute_without_float16_units,
    wait_for_each_kernel,
    wait_without_spinning,
)
from nsa_doctor.isolation.shared_record import LAST_WILL, SIGHTING, TRAIL, SharedRecord
from nsa_doctor.worker.answer_line import is_broken, line_of

if TYPE_CHECKING:
    from nsa_doctor.probes.hooks.stack_sampler import StackSampler

_TICK_SECONDS = 1.0
_number_of_this_process = os.getpid  # the system's own: a check varies what `os` says, and so may a subject
_LEFT = 113  # the exit code of a process that has left a last will
_NOWHERE: dict[str, Any] = {"place": {}}
_LIMITS = {getattr(resource, name): name for name in sorted(dir(resource), reverse=True) if name.startswith("RLIMIT_")}

Room = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    """Serve requests until the parent closes its pipe."""
    given = json.loads(sys.argv.pop())
    wait_without_spinning()
    compute_without_float16_units()
    if given["is_line_recorded"]:
        wait_for_each_kernel()
    if not given["is_memory_kept"]:
        allocate_each_tensor()
    let_ours_win()
    channel = Channel(given)
    rooms: list[Room] = []
    while (line := channel.next_request()) is not None:
        channel.answer(lambda line=line: _room(rooms, given["room"], channel)(json.loads(line)))
    os._exit(0)  # threads a subject left behind must not keep the process alive


def _room(rooms: list[Room], name: str, channel: "Channel") -> Room:
    """The room, opened once there is something to ask."""
    if not rooms:
        module = importlib.import_module(name)  # torch perhaps, which takes its time
        channel.send({"event": "started"})
        rooms.append(module.open_room(channel))
        channel.close_questions()
    return rooms[0]


class Channel:
    """The way to the parent. What the subject does to it is seen before anything is written into a stranger's file."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._requests, self._answers, self._questions, self._file = (
            int(given[name]) for name in ("requests", "answers", "questions", "file")
        )
        self._is_line_recorded = bool(given["is_line_recorded"])
        self._process = _number_of_this_process()
        self._lock = threading.Lock()
        self._received = b""
        self._is_watched = False
        self._will = SharedRecord(self._file, LAST_WILL)
        self._ours = {number: _file_of(number) for number in (self._requests, self._answers)}
        self._limits = _limits()
        for number in (self._requests, self._answers, self._questions, self._file):
            os.set_inheritable(number, False)
        faulthandler.enable(file=self._file, all_threads=True)
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True, chain=False)

    def send(self, event: dict[str, Any]) -> None:
        """Report an event; nothing of a copy."""
        if not self._is_cut_off():
            self.say(json.dumps(event))

    def tell(self, text: str) -> None:
        """Report what has been done so far, in words for a person."""
        self.send({"event": "progress", "text": text})

    def answer(self, answered: Callable[[], dict[str, Any]]) -> None:
        """Send what a call answers, or how the doctor's own code broke."""
        line = line_of(answered)
        if (lowered := self._lowered_limits()) and is_broken(line):
            self._leave(f"lowered {' and '.join(lowered)}, with which nothing else works in it")
        self.say(f'{{"answer": {line}}}')

    def say(self, line: str) -> None:
        """Write one line."""
        self._check()
        with self._lock:
            data = line.encode() + b"\n"
            while data:
                data = data[os.write(self._answers, data) :]

    def next_request(self) -> bytes | None:
        """The next line; None once the parent has closed its end."""
        while b"\n" not in self._received:
            self._check()
            data = os.read(self._requests, 65536)
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def keep_errors(self) -> None:
        """Have standard error go where the stacks of this process go: to a file, which can be read again."""
        os.dup2(self._file, 2)

    def tick(self) -> None:
        """Give a sign of life every second from now on, in a thread that the subject can keep from it."""

        def live() -> None:
            while True:
                self.send({"event": "tick"})
                time.sleep(_TICK_SECONDS)

        threading.Thread(target=live, daemon=True).start()

    def watch(self, sampler: "StackSampler") -> None:
        """Have a thread of its own say where the subject is when the parent asks, and record lines if it wants that."""
        self._is_watched = True
        sampler.listen()
        page = SharedRecord(self._file, SIGHTING)

        def tell() -> None:
            while os.read(self._questions, 1):
                sighting = attempt(lambda: sampler.sight().to_json())
                page.write(_NOWHERE if isinstance(sighting, Caught) else sighting)  # no answer would look like a hang

        threading.Thread(target=tell, daemon=True).start()
        self._watch_compilers(sampler)
        if self._is_line_recorded:
            from nsa_doctor.probes.hooks.line_recorder import LineRecorder

            LineRecorder(sampler, SharedRecord(self._file, TRAIL)).begin()

    def _watch_compilers(self, sampler: "StackSampler") -> None:
        """Report every second in which something compiles, from a thread of its own."""
        from nsa_doctor.probes.hooks.compile_watch import CompileWatch

        watch = CompileWatch(lambda: sampler.frames, threading.get_ident())
        threading.Thread(target=watch.follow, args=(self.send,), daemon=True).start()

    def close_questions(self) -> None:
        """Let the parent know that nobody looks here, unless somebody does."""
        if not self._is_watched:
            os.close(self._questions)

    def _is_cut_off(self) -> bool:
        """Whether this is a copy that a check has made of the process, all of whose pipes lead nowhere."""
        return _number_of_this_process() != self._process and _file_of(self._answers) == _nowhere()

    def _check(self) -> None:
        if _number_of_this_process() != self._process:  # the subject has forked, and here its fork comes back from it
            os._exit(0)
        if any(_file_of(number) != file for number, file in self._ours.items()):
            self._leave("closed file descriptors that are not its own, and with them the way its answers come")

    def _leave(self, reason: str) -> NoReturn:
        """End, and let the parent say why in place of an exit code."""
        self._will.write({"reason": reason})
        os._exit(_LEFT)

    def _lowered_limits(self) -> list[str]:
        infinite, now = resource.RLIM_INFINITY, _limits()
        return [
            f"{_LIMITS[number]} to {now[number]}"
            for number, before in self._limits.items()
            if now[number] != infinite and (before == infinite or now[number] < before)
        ]


def _limits() -> dict[int, int]:
    return {number: resource.getrlimit(number)[0] for number in _LIMITS}


def _nowhere() -> tuple[int, int]:
    status = os.stat(os.devnull)
    return status.st_dev, status.st_ino


def _file_of(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
