"""DST103 rank-died

Detects: a process that ended with a reason of its own, or without a word, and took the others with it.
Matters: the others report a lost connection; the first one's reason is the one to mend.
Fix: do what that rank's reason says, then start all processes again with --resume auto.

Example:
    # faulty
    if not shard.exists():
        sys.exit(1)  # without a word, while the other ranks wait in all_reduce
    # correct
    if not shard.exists():
        raise FileNotFoundError(f"rank {rank}: {shard} is missing")
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.rank_consistency import death
from nsa_doctor.artifacts.training_run.sessions import kind_of
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import escaped
from nsa_doctor.testing.ranks import trained_by_two

_LONGEST_REASON = 300


def run(subject: RunSubject) -> Iterator[Finding]:
    record = subject.record
    if record.world_size < 2 and len(record.ranks) < 2:
        raise NotApplicableError("the run has one process")
    found = death(record)
    if found is None or kind_of(found.reason) in ("not finite", "stalled", "stopped", "ranks differ"):
        return  # reported by TRN201, TRN102, DST102
    who = "a process" if found.rank is None else f"rank {found.rank}"
    yield Finding(
        message=f"{who} ended the run after step {found.step or 0}: {escaped(found.reason[:_LONGEST_REASON])}",
        evidence={
            "run": subject.name,
            "rank": found.rank,
            "step": found.step,
            "reason": found.reason,
            "ranks": record.world_size,
        },
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    return trained_by_two("fails")


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=800)
