"""Starts the doctor's own child processes: new interpreters, or forks of this process where that was allowed.

Not multiprocessing's fork server: what it forks imports the caller's `__main__` again, shares the server's session and
streams, is no child of whoever asks, and has the environment of the first who asked in this process.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import ClassVar

from nsa_doctor.core.package import PACKAGE_ROOT
from nsa_doctor.isolation.forked import ForkedProcess
from nsa_doctor.isolation.keeper import SHOW_STACKS, main

_SECONDS_TO_END = 2.0  # for a keeper that has said all it had to


class Children:
    """`are_forked`: for a process that has imported torch already and has no GPU to share."""

    are_forked: ClassVar[bool] = False


class KeptProcess:
    """A process that runs a module's `main` with these words as its `sys.argv[1:]`, in a session of its own.

    It has these files open, under the same numbers. Its standard error is `errors` here; its other standard streams
    lead nowhere. Its keeper ends it and all that it started, and then says so in a line to the file `report`. `under`
    are the first words of its command, of a program that runs the rest.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        files: Collection[int],
        report: int,
        *,
        is_fresh: bool = False,
        under: Sequence[str] = (),
    ) -> None:
        held, self._leash = os.pipe()
        given, arguments = (held, *files), [str(held), str(report), module, *words]
        self._process: ForkedProcess | subprocess.Popen[bytes]
        try:
            if Children.are_forked and not (is_fresh or under):
                self._process = ForkedProcess(lambda: _run(arguments), given)
            else:
                self._process = subprocess.Popen(  # noqa: S603 (our own interpreter)
                    [*under, sys.executable, "-P", "-c", _program(), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=given,
                    start_new_session=True,
                )
        except OSError:
            os.close(self._leash)
            raise
        finally:
            os.close(held)
        assert self._process.stderr is not None
        self.errors = self._process.stderr

    def show_stacks(self) -> None:
        """Have the keeper ask the process, by SIGUSR1, for the stacks of all its threads."""
        with suppress(OSError):
            os.write(self._leash, SHOW_STACKS)

    def end(self) -> None:
        """Let go of the leash: the keeper ends the process, unless it has ended, and all that it started."""
        leash, self._leash = self._leash, -1
        if leash >= 0:
            os.close(leash)
            self._process.send_signal(signal.SIGCONT)  # the subject may have stopped its parent

    def wait(self) -> int:
        """The exit code, 128 and its number for a signal, once the leash was let go and all is ended."""
        try:
            return self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # with the keeper ends the process
            self._process.send_signal(signal.SIGKILL)
            return self._process.wait()


def _run(words: Sequence[str]) -> None:
    sys.argv[1:] = words
    main()


def _program() -> str:
    """It imports this very package, wherever it was imported from, and nothing of the current folder."""
    root = str(PACKAGE_ROOT.parent)
    return (
        f"import sys; root = {root!r}; root in sys.path or sys.path.insert(0, root)\n"
        "from nsa_doctor.isolation.keeper import main; main()"
    )
