"""A small process between the doctor and a child: it outlives the child, and ends every process that the child started.

What a subject starts may leave its session, or be adopted when its parent ends; on Linux it stays a descendant of the
keeper all the same, and nothing else is one.
"""

import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from nsa_doctor.isolation.descendants import adopt_orphans, end_descendants
from nsa_doctor.isolation.orphans import die_with

SHOW_STACKS = b"s"  # what may be written on the leash; that it is closed means the end
_NUDGES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # not to be ended by those, the leash does it


def main() -> None:
    """Run a module's `main` under a keeper: the words are the leash, where to report, and the module."""
    leash, report, module = sys.argv[1:4]
    del sys.argv[1:4]
    under_keeper(lambda: importlib.import_module(module).main(), int(leash), int(report))


def under_keeper(live: Callable[[], object], leash: int, report: int) -> None:
    """Make the call in a new process and return from there; this one stays as its keeper and never returns.

    leash: once it is closed at the other end the process and all that it started are ended. report: gets one line at
    the end, `ended` by the process's exit code or signal and what was `left`, the commands that had left its session.
    """
    adopt_orphans()
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        _keep(pid, leash, report)
    os.close(leash)
    os.setsid()
    die_with(keeper)
    live()


def _keep(pid: int, leash: int, report: int) -> NoReturn:
    code = 1
    try:
        for number in _NUDGES:
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, min(leash, report))
        os.closerange(min(leash, report) + 1, max(leash, report))
        os.closerange(max(leash, report) + 1, os.sysconf("SC_OPEN_MAX"))
        status = _ended(pid, leash)
        left = end_descendants(pid)
        ended = {"event": "ended", "status": status, "left": left}
        with suppress(OSError):  # nobody listens any more
            os.write(report, b"\n" + json.dumps(ended).encode() + b"\n")  # after a line that may be half written
        code = status if status >= 0 else 128 - status
    finally:
        os._exit(code)


def _ended(pid: int, leash: int) -> int:
    """The exit code of the process, less than 0 for a signal, once it has ended or was ended by its leash."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listened = [woken, leash]
    while True:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # orphans that were adopted too
                if ended[0] == pid:
                    return os.waitstatus_to_exitcode(ended[1])
        ready, _, _ = select.select(listened, [], [])
        if woken in ready:
            os.read(woken, 4096)
        if leash in ready and os.read(leash, 1) == SHOW_STACKS:
            os.kill(pid, signal.SIGUSR1)
        elif leash in ready:
            os.kill(pid, signal.SIGKILL)
            listened = [woken]
