"""Checks of what was written down, a checkpoint or a training run: judged here and now, in no child process."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.check import Check
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding, Note, Result, Verdict
from nsa_doctor.core.registry import Entry


def judged(entries: Iterable[Entry], subject: Any) -> list[Result]:
    """The end of every check, in order of importance; a check means nothing where what it needs failed.

    A finding that another one explains is named there and reported no more.
    """
    known = list(entries)
    waiting = list(known)
    ended: dict[str, Result] = {}
    while waiting:
        codes = [entry.manual.code for entry in waiting]
        entry = next((each for each in waiting if not any(c.startswith(each.blocked_by) for c in codes)), waiting[0])
        waiting.remove(entry)
        code = entry.manual.code
        failed = [c for c, end in ended.items() if c.startswith(entry.blocked_by) and end.verdict is Verdict.FAIL]
        if failed:
            reason = f"means nothing while {failed[0]} fails"
            ended[code] = Result(code=code, name=entry.manual.name, verdict=Verdict.SKIP, reason=reason)
        else:
            ended[code] = judge(registry.load(code), subject)
    return list(deduplicate(ended.values(), {entry.manual.code: entry for entry in known}))


def judge(check: Check, subject: Any) -> Result:
    """How one check ends: findings make FAIL, nothing to judge SKIP, the doctor's own exception CRASH."""
    manual = check.manual
    start = time.perf_counter()
    answer = attempt(lambda: tuple(check.run(subject)))
    seconds = time.perf_counter() - start
    result = Result(code=manual.code, name=manual.name, verdict=Verdict.PASS, seconds=seconds)
    if isinstance(answer, Caught):
        error = answer.error
        if isinstance(error, KeyboardInterrupt):
            raise error
        is_skipped = isinstance(error, (NotComparableError, NotApplicableError))
        reason = str(error) if is_skipped else answer.sentence
        verdict = Verdict.SKIP if is_skipped else Verdict.CRASH
        return replace(result, verdict=verdict, reason=reason, is_required=not isinstance(error, NotApplicableError))
    findings = tuple(replace(item, code=manual.code) for item in answer if isinstance(item, Finding))
    notes = tuple(str(item) for item in answer if isinstance(item, Note))
    verdict = Verdict.FAIL if findings else Verdict.PASS
    return replace(result, verdict=verdict, notes=notes).with_findings(findings)
