"""What a user calls gates: a glob or a regular expression, whichever it is."""

import fnmatch
import re
from collections.abc import Callable

_SIGNS = "*?["


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
