"""How checks of checkpoints end, file by file and for all files together."""

from collections.abc import Sequence
from dataclasses import replace

from nsa_doctor.artifacts import judging
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict

# Of several files' ends of one check, the first of these that occurs counts for all.
_GRAVEST = (Verdict.FAIL, Verdict.TIMEOUT, Verdict.CRASH, Verdict.SKIP, Verdict.PASS)


def judged(reading: Reading, words: tuple[str, ...]) -> list[Result]:
    """The end of every check on one file, in order of importance; a check means nothing where what it needs failed.

    `words` name the file, and how it was read, on the command line.
    """
    subject = CheckpointSubject(name=reading.path, checkpoint=lambda: reading, options=words)
    return judging.judged(registry.of_kind("checkpoint"), subject)


def judged_together(files: Sequence[Sequence[Result]]) -> tuple[Result, ...]:
    """One end of each check for all files."""
    return tuple(_merged(results) for results in zip(*files, strict=True))


def _merged(results: Sequence[Result]) -> Result:
    required = [result for result in results if result.is_required or result.verdict is not Verdict.SKIP]
    gravest = min(required or results, key=lambda result: _GRAVEST.index(result.verdict))
    return replace(
        gravest,
        findings=tuple(finding for result in results for finding in result.findings),
        further=tuple(fingerprint for result in results for fingerprint in result.further),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        seconds=sum(result.seconds for result in results),
    )
