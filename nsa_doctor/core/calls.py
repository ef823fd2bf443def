"""Calls of Python functions in this thread, seen as they begin and return."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calls_seen_by(look: Callable[[FrameType, str, Any], object]) -> Iterator[None]:
    """A region in which look(frame, event, argument) is called as `sys.setprofile` says, and then what was before."""
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
