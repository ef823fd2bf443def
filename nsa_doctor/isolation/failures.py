"""How a child can fail to answer, each an exception that says so in a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsa_doctor.core.endings import end_of


@dataclass(frozen=True, kw_only=True)
class CrashReport:
    """What is left of a child that gave no answer.

    The last event it reported, the module it had made, where it was seen or last wrote that it was, the stacks of all
    threads as faulthandler writes them, and what it wrote to standard error last.
    """

    event: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    sighting: Mapping[str, Any] | None = None
    dump: str = ""
    last_words: str = ""


class WorkerHungError(Exception):
    """No answer in time; before that, something compiled for `compiled` seconds."""

    def __init__(self, seconds: float, crash: CrashReport, compiled: float = 0.0) -> None:
        after = f" after {compiled:.0f} s of compiling" if compiled else ""
        super().__init__(f"no answer within {seconds:g} s{after}")
        self.seconds, self.crash = seconds, crash


class WorkerSlowError(Exception):
    """The child was at work, as its events showed, but the whole answer took longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not finished within {seconds:.2g} s")
        self.seconds = seconds


class WorkerDiedError(Exception):
    """The process ended before it answered: by a signal (negative `status`), by an exit code, or for a `reason`."""

    def __init__(self, status: int, crash: CrashReport, reason: str = "") -> None:
        self.status, self.crash = status, crash
        super().__init__(f"the process {reason or end_of(status)}")
