"""A process that has imported what cases need, once, and forks one process for each case.

It runs no operation of torch, so that what it forks has no threads or locks of another life. Where a process cannot be
forked, or not be given files, each case starts an interpreter of its own; it ends in the same ways, and takes longer.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from nsa_doctor.isolation.openmp import keep_to_one_thread
from nsa_doctor.isolation.orphans import die_with
from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.worker_process import STARTUP_SECONDS

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
IMPORTED = (
    "nsa.nn",
    "nsa.train.run",
    "nsa_doctor.worker.handlers",
    "nsa_doctor.cases.worker_main",
    "nsa_doctor.cli.main",
    "nsa_doctor.render.reading",
    "nsa_doctor.engine.run",
    "nsa_doctor.artifacts.training_run.watch",
    "torch._dynamo",  # an optimizer's first step would import it
)
_BLINK = 0.02  # seconds between two looks at what has ended


class Started(Protocol):
    """A process in which a case runs."""

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or less than 0 for a signal; None where it has not ended in time."""

    def end(self) -> None:
        """End it, and all of its group."""


class Starter:
    """Starts processes for cases, forked from one that is warm; where it `is_fresh`, interpreters of their own.

    They have the environment that there was when this was made, and the folder that there is when they start.
    imported: by name, the modules that are there already: the more, the later the first starts and the sooner others.
    """

    def __init__(self, imported: Sequence[str] = IMPORTED, *, is_fresh: bool = not CAN_FORK) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        if not is_fresh:
            self._control, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno()), *imported]
                self._server = subprocess.Popen(  # noqa: S603 (our own interpreter)
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
                )

    def __enter__(self) -> "Starter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the server, and with it all that it has forked."""
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.wait()

    def start(self, words: Sequence[str], errors: Path) -> Started:
        """A process that runs `nsa_doctor.cases.worker_main` with these words; what it complains of goes to a file."""
        if self._control is None:
            return _Fresh(words, errors)
        return _Forked(self._control, words, errors)


class _Fresh:
    def __init__(self, words: Sequence[str], errors: Path) -> None:
        with errors.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter)
                [sys.executable, "-m", "nsa_doctor.cases.worker_main", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> int | None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        _kill_rest(self._process.pid)
        return code

    def end(self) -> None:
        if self._process.returncode is None:  # until `wait` has it, nothing else can get its number
            _kill_group(self._process.pid)
            self._process.wait()


class _Forked:
    """The server has the other end of a socket: it tells there how the process ended, and ends it when that closes."""

    def __init__(self, control: socket.socket, words: Sequence[str], errors: Path) -> None:
        self._is_forked = False
        self._socket, theirs = socket.socketpair()
        request = {"words": list(words), "errors": str(errors), "folder": str(Path.cwd())}
        with theirs, suppress(ConnectionError):  # where the server is gone, so is this process, as `wait` will say
            socket.send_fds(control, [b"?"], [theirs.fileno()])
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def wait(self, seconds: float) -> int | None:
        try:
            if not self._is_forked:
                self._told(STARTUP_SECONDS)  # what the server imports takes nothing of the time of a case
                self._is_forked = True
            return int(self._told(seconds))
        except TimeoutError:
            return None
        except OSError:  # the server is gone, or another thread ended this
            return -signal.SIGKILL

    def _told(self, seconds: float) -> bytes:
        self._socket.settimeout(seconds)
        with self._socket.makefile("rb", buffering=0) as lines:
            return lines.readline() or str(-signal.SIGKILL).encode()

    def end(self) -> None:
        with suppress(OSError):  # it was ended before, or the server is gone
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in `_told`, which closing does not
        self._socket.close()


def main() -> None:
    """Serve until the other end is closed; in a forked process, run its case."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked ends what it asked for
    keep_to_one_thread()
    _warm_up(sys.argv[2:])
    request = _serve(control)
    if request is not None:
        from nsa_doctor.cases.worker_main import main

        if "torch" in sys.modules:
            from nsa_doctor.probes.model.state import can_be_forked

            Children.are_forked = can_be_forked()
        sys.argv[1:] = request["words"]
        main()


def _warm_up(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    gc.freeze()  # no collector of theirs looks through what is imported


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """None once nobody asks any more; in a process that was forked, what it is to do."""
    server = os.getpid()
    lives: dict[int, socket.socket] = {}
    try:
        return _fork_what_is_asked(control, lives)
    finally:
        if os.getpid() == server:  # what was forked comes by here too
            for pid in lives:
                _kill_group(pid)


def _fork_what_is_asked(control: socket.socket, lives: dict[int, socket.socket]) -> dict[str, Any] | None:
    server = os.getpid()
    while True:
        ready, _, _ = select.select([control, *lives.values()], [], [], _BLINK if lives else None)
        if control in ready:
            word, received, _, _ = socket.recv_fds(control, 1, 1)
            if not word:
                return None
            asked = socket.socket(fileno=received[0])
            with asked.makefile("rb") as lines:
                request: dict[str, Any] = json.loads(lines.readline())
            pid = os.fork()
            if pid == 0:
                die_with(server)
                for each in (control, asked, *lives.values()):
                    each.close()
                _become(request)
                return request
            lives[pid] = asked
            _tell(asked, pid)
        for pid, asked in list(lives.items()):
            if asked in ready:  # it was closed: nothing else comes
                _kill_group(pid)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _kill_rest(pid)
                with lives.pop(pid) as asked:
                    _tell(asked, os.waitstatus_to_exitcode(status))


def _tell(asked: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody wants to know any more
        asked.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any]) -> None:
    """A process as a fresh one would be: with a group, files and a folder of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, target in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(target, number)
    os.close(nothing)
    os.close(errors)
    os.chdir(request["folder"])


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    _kill_rest(pid)


def _kill_rest(pid: int) -> None:
    """End what is left of the group of a process that may have ended: a group keeps its number while one lives."""
    with suppress(ProcessLookupError, PermissionError):  # it was not a group yet, or has none that we may end
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
