"""Which lines of which files run: a trace of every line, for a look at what a subject's own code reaches."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, set[int]]


@contextmanager
def reached_lines(is_own: Callable[[str], bool]) -> Iterator[Lines]:
    """The numbers of the lines that run in this region, by file, of files that are the subject's own."""
    lines: Lines = {}
    known: dict[CodeType, set[int] | None] = {}

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in known:
            known[code] = lines.setdefault(code.co_filename, set()) if is_own(code.co_filename) else None
        return follow if known[code] is not None else None

    def follow(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and (found := known[frame.f_code]) is not None:
            found.add(frame.f_lineno)
        return follow

    with traced_by(called):
        yield lines


@contextmanager
def traced_by(called: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Have Python ask, in this thread and in those that begin in the region, at every call how to trace it."""
    before = sys.gettrace()
    threading.settrace(called)
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)
