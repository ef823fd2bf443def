"""What a user calls gates: a glob or a regular expression, whichever it is."""

import fnmatch
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from nsa_doctor.artifacts.checkpoint.fault import FaultError, shortened

MOST_SECONDS = 5.0  # of this process's own time
_SIGNS = "*?["


@contextmanager
def bounded(pattern: str, seconds: float = MOST_SECONDS) -> Iterator[None]:
    """Matching in here ends in a FaultError after some seconds: an expression may backtrack for ever over one name."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        what = f"--pattern {shortened(pattern)!r} takes more than {seconds:g} s to match the names of the tensors"
        raise FaultError("limit", f"{what}: it backtracks; write it without repeats of repeats, as (a+)+ is")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def matcher(pattern: str) -> Callable[[str], bool]:
    """The pattern as a glob of the whole name or a regular expression anywhere in it."""
    expression = None if _error(pattern) else re.compile(pattern)

    def is_match(name: str) -> bool:
        return fnmatch.fnmatchcase(name, pattern) or (expression is not None and expression.search(name) is not None)

    return is_match


def wrong_pattern(pattern: str | None) -> str | None:
    """Why it can be neither; None when it can."""
    if pattern is None:
        return None
    if not pattern:
        return "it is empty"
    return None if any(sign in pattern for sign in _SIGNS) else _error(pattern)


def _error(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return None
