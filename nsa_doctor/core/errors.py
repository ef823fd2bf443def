"""Runs what may fail: the only place that catches whatever comes."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Caught:
    """An exception that came out of a call, those that mean to end the process included."""

    error: BaseException

    @property
    def sentence(self) -> str:
        """The exception's type and the first line of what it says."""
        printed = str(traceback.TracebackException.from_exception(self.error, limit=0))  # survives a broken __str__
        text = printed.strip().partition("\n")[0]
        text = text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 3] + "..."
        return f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__

    @property
    def traceback(self) -> str:
        """The traceback as Python prints it."""
        return "".join(traceback.format_exception(self.error))


class SubjectFailedError(Exception):
    """The subject raised in a phase; `module` and `output` (torch's) are what it had come to, if anything."""

    def __init__(self, phase: str, caught: Caught, module: Any, output: Any = None) -> None:
        super().__init__(caught.sentence)
        self.phase = phase
        self.caught = caught
        self.module = module
        self.output = output


class NotComparableError(Exception):
    """There is nothing to compare with: one sentence says why (the output is not finite to begin with, say)."""


class NotApplicableError(Exception):
    """The subject has nothing of the kind that a check is about; one sentence says what is missing."""


def attempt(call: Callable[[], _Answer]) -> _Answer | Caught:
    """The call's answer, or what it raised."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 (the one place that does)
        return Caught(error)


class UsageError(ValueError):
    """The request cannot be served; one sentence says what would be right."""


class InternalError(Exception):
    """The doctor's own code failed in the child."""

    def __init__(self, sentence: str, traceback: str) -> None:
        super().__init__(sentence)
        self.traceback = traceback


class OptionError(ValueError):
    """An option has a value it cannot have; one sentence names the option, the value and what is allowed."""
