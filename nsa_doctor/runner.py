"""Runs what may fail, in order and timed: the only place that catches whatever comes."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from nsa_doctor.check import Check
from nsa_doctor.finding import Finding, Result, Verdict
from nsa_doctor.frames import FrameFilter
from nsa_doctor.measurement import Place

if TYPE_CHECKING:
    from nsa_doctor.subject import Subject

_Answer = TypeVar("_Answer")
_LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Caught:
    """An exception that came out of a call, those that mean to end the process included."""

    error: BaseException

    @property
    def sentence(self) -> str:
        """The exception's type and the first line of what it says."""
        told = str(traceback.TracebackException.from_exception(self.error, limit=0))  # survives a broken __str__
        text = told.strip().partition("\n")[0]
        text = text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 3] + "..."
        return f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__

    @property
    def traceback(self) -> str:
        """The traceback as Python prints it."""
        return "".join(traceback.format_exception(self.error))


def attempt(call: Callable[[], _Answer]) -> _Answer | Caught:
    """The call's answer, or what it raised."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 (the one place that does)
        return Caught(error)


def run_check(check: Check, subject: "Subject") -> Result:
    """Run one check in this process: findings make FAIL, a missing seam SKIP, the doctor's own exception CRASH."""
    manual = check.manual
    missing = [seam for seam in check.needs if not subject.offers(seam)]
    if missing:
        reason = f"{subject.name} offers no {' and no '.join(missing)}"
        return Result(code=manual.code, name=manual.name, verdict=Verdict.SKIP, reason=reason)
    start = time.perf_counter()
    answer = attempt(lambda: tuple(check.run(subject)))
    seconds = time.perf_counter() - start
    if isinstance(answer, Caught):
        return replace(_raised(answer, check), seconds=seconds)
    findings = tuple(replace(finding, code=finding.code or manual.code) for finding in answer)
    verdict = Verdict.FAIL if findings else Verdict.PASS
    return Result(code=manual.code, name=manual.name, verdict=verdict, findings=findings, seconds=seconds)


def _raised(caught: Caught, check: Check) -> Result:
    """FAIL when the subject's own code raised, CRASH when the doctor's did."""
    manual = check.manual
    line = FrameFilter().of_traceback(caught.error.__traceback__)
    own_code = check.run.__code__.co_filename
    if line is None or line.file == own_code:
        return Result(code=manual.code, name=manual.name, verdict=Verdict.CRASH, reason=caught.sentence)
    place = Place(file=line.file, line=line.line, function=line.function)
    finding = Finding(code=manual.code, message=f"the subject raises {caught.sentence}", where=place)
    return Result(code=manual.code, name=manual.name, verdict=Verdict.FAIL, findings=(finding,))
