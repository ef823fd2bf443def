"""The command line: hand the words to a command, turn every error into one sentence and an exit code."""

import errno
import sys
from typing import NoReturn, Protocol, runtime_checkable

import typer

from nsa_doctor.cli.commands.anomaly import anomaly
from nsa_doctor.cli.commands.compare import compare
from nsa_doctor.cli.commands.data import data
from nsa_doctor.cli.commands.env import env
from nsa_doctor.cli.commands.fuzz import fuzz
from nsa_doctor.cli.commands.gate_init import gate_init
from nsa_doctor.cli.commands.gate_stats import gate_stats
from nsa_doctor.cli.commands.go_no_go import go_no_go
from nsa_doctor.cli.commands.init import init
from nsa_doctor.cli.commands.manuals import explain, list_checks
from nsa_doctor.cli.commands.matrix import matrix
from nsa_doctor.cli.commands.regressions import regressions
from nsa_doctor.cli.commands.render import render
from nsa_doctor.cli.commands.run import run
from nsa_doctor.cli.commands.smoke import smoke
from nsa_doctor.cli.commands.sweep import sweep
from nsa_doctor.cli.commands.throughput import throughput
from nsa_doctor.cli.commands.watch import watch
from nsa_doctor.cli.delivery import ENDED_EARLY
from nsa_doctor.cli.grammar import HELP_NAMES, Command, Group, general
from nsa_doctor.core import signals
from nsa_doctor.core.check_file import CheckFileError
from nsa_doctor.core.errors import Caught, InternalError, OptionError, UsageError, attempt
from nsa_doctor.core.finding import ExitCode
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import CannotWriteError, say

_LONGEST = 800
# What a machine runs out of: disk, quota, size of a file, open files, processes or memory. Not the doctor's own faults.
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

_COMPLETION = ("--install-completion", "--show-completion")  # typer ends these, and a shell's questions, by itself


@runtime_checkable
class _Refusal(Protocol):
    """What typer raises for a command line that cannot be, in whichever package it keeps click."""

    exit_code: int

    def format_message(self) -> str:
        """What is wrong with the command line."""


app = typer.Typer(
    cls=Group,
    callback=general,
    context_settings=HELP_NAMES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Examines sparse-attention code: says what is wrong, where, and what to do about it.",
    epilog=f"Exit codes: {ExitCode.WELL} all is well, {ExitCode.WRONG} something is wrong, {ExitCode.USAGE} usage, "
    f"{ExitCode.UNMEASURED} not everything could be measured, {ExitCode.BROKEN} internal error, "
    f"{ExitCode.INTERRUPTED} interrupted, 143 or 129 ended by SIGTERM or SIGHUP; "
    "what was interrupted reports what it measured.",
)
for _command in (
    init,
    run,
    sweep,
    anomaly,
    fuzz,
    throughput,
    smoke,
    watch,
    matrix,
    regressions,
    env,
    render,
    compare,
    data,
):
    app.command(cls=Command)(_command)
app.command("go-no-go", cls=Command)(go_no_go)
app.command("gate-stats", cls=Command)(gate_stats)
app.command("gate-init", cls=Command)(gate_init)
app.command("list", cls=Command)(list_checks)
app.command(cls=Command)(explain)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    signals.interrupt_on_signals()
    sys.exit(_served(sys.argv[1:]))


def serve(arguments: list[str]) -> int:
    """Run one command line in a process that goes on after it, with the signals it had.

    Every error becomes one sentence on standard error and an exit code.
    """
    with signals.put_back():
        return _served(arguments)


def _served(arguments: list[str]) -> int:
    answer = attempt(lambda: app(args=arguments, prog_name="nsa-doctor", standalone_mode=False))
    if answer == ENDED_EARLY:
        return signals.exit_code()
    if answer == ExitCode.INTERRUPTED:  # typer makes it of a KeyboardInterrupt that comes out of a command
        return _complain("interrupted", signals.exit_code())
    if not isinstance(answer, Caught):
        return answer if isinstance(answer, int) else 0
    error = answer.error
    if isinstance(error, SystemExit) and (not arguments or arguments[0] in _COMPLETION):
        return error.code if isinstance(error.code, int) else 0
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return _complain("interrupted", signals.exit_code())
    if "--traceback" in arguments:
        say(getattr(error, "traceback", "") or answer.traceback, sys.stderr)
    if isinstance(error, _Refusal):
        return _complain(" ".join(error.format_message().split()), ExitCode.USAGE)
    if isinstance(error, (UsageError, OptionError, CheckFileError, CannotWriteError)):
        return _complain(str(error), ExitCode.USAGE)
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error.strerror):
        return _complain(f"{error.strerror}: free some room there, or name a folder in TMPDIR", ExitCode.USAGE)
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror}: the machine has no more; free some and try again", ExitCode.USAGE)
    message = str(error) if isinstance(error, InternalError) else answer.sentence
    return _complain(f"internal error: {message}; --traceback shows where", ExitCode.BROKEN)


def _complain(sentence: str, code: int) -> int:
    """Print one sentence of bounded length; what is wrong stands at its ends, around what came from outside."""
    half = _LONGEST // 2
    parts = [sentence] if len(sentence) <= _LONGEST else [sentence[:half], sentence[-half:]]
    say(f"nsa-doctor: {' ... '.join(map(escaped, parts))}\n", sys.stderr)
    return code
