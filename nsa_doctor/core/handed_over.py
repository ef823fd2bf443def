"""What a Python program hands over by value to be examined: its forks have it, and new processes have not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAME = f"{__name__}:given"
given: Any = None


@contextmanager
def handed_over(value: Any) -> Iterator[None]:
    """`NAME` names the value, in this process and in what is forked from it meanwhile."""
    global given  # noqa: PLW0603 (a module is what a name of a subject begins with)
    before, given = given, value
    try:
        yield
    finally:
        given = before
