"""Checks of checkpoints run on what was read: without torch, which none of them needs."""

import time
from collections.abc import Sequence
from dataclasses import replace

from nsa_doctor import registry
from nsa_doctor.check import Check
from nsa_doctor.checkpoints.reader import ReaderBrokeError
from nsa_doctor.checkpoints.record import Reading
from nsa_doctor.checkpoints.subject import CheckpointSubject
from nsa_doctor.consolidate import rank
from nsa_doctor.finding import Finding, Note, Result, Verdict
from nsa_doctor.runner import Caught, NotApplicableError, NotComparableError, attempt

_MOST_FINDINGS = 3
# Of several files' ends of one check, the first of these that occurs counts for all.
_GRAVEST = (Verdict.FAIL, Verdict.TIMEOUT, Verdict.CRASH, Verdict.SKIP, Verdict.PASS)


def judged(reading: Reading, words: tuple[str, ...]) -> list[Result]:
    """The end of every check on one file, in order of importance; a check means nothing where what it needs failed.

    `words` name the file, and how it was read, on the command line.
    """
    subject = CheckpointSubject(name=reading.path, checkpoint=lambda: reading, options=words)
    waiting = [entry for entry in registry.entries().values() if entry.examines == "checkpoint"]
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
    return sorted(ended.values(), key=lambda result: (rank(result.code), result.code))


def judged_together(files: Sequence[Sequence[Result]]) -> tuple[Result, ...]:
    """One end of each check for all files."""
    return tuple(_merged(results) for results in zip(*files, strict=True))


def _merged(results: Sequence[Result]) -> Result:
    required = [result for result in results if result.is_required or result.verdict is not Verdict.SKIP]
    gravest = min(required or results, key=lambda result: _GRAVEST.index(result.verdict))
    return replace(
        gravest,
        findings=tuple(finding for result in results for finding in result.findings),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        seconds=sum(result.seconds for result in results),
    )


def judge(check: Check, subject: CheckpointSubject) -> Result:
    """How one check ends: findings make FAIL, nothing to judge SKIP, the doctor's own exception CRASH."""
    manual = check.manual
    start = time.perf_counter()
    answer = attempt(lambda: tuple(check.run(subject)))
    seconds = time.perf_counter() - start
    result = Result(code=manual.code, name=manual.name, verdict=Verdict.PASS, seconds=seconds)
    if isinstance(answer, Caught):
        error = answer.error
        if isinstance(error, (KeyboardInterrupt, ReaderBrokeError)):
            raise error
        is_skipped = isinstance(error, (NotComparableError, NotApplicableError))
        reason = str(error) if is_skipped else answer.sentence
        verdict = Verdict.SKIP if is_skipped else Verdict.CRASH
        return replace(result, verdict=verdict, reason=reason, is_required=not isinstance(error, NotApplicableError))
    findings = tuple(replace(item, code=manual.code) for item in answer if isinstance(item, Finding))
    notes = tuple(str(item) for item in answer if isinstance(item, Note))
    verdict = Verdict.FAIL if findings else Verdict.PASS
    return replace(result, verdict=verdict, findings=findings[:_MOST_FINDINGS], notes=notes)
