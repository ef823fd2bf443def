"""TRN103 ended-with-an-error

Detects: a run that ended before its last step for want of memory, data, room on the disk, or with an exception.
Matters: it will not go on by itself, and what made it end will end it again.
Fix: do what the reason says, then go on with --resume auto.

Example:
    # faulty
    for step in range(steps):
        train_step(next(batches))  # StopIteration: the rows end before the steps do
    # correct
    batches = (batch for epoch in itertools.count() for batch in loader)
    for step in range(steps):
        train_step(next(batches))
"""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.sessions import endings
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.text import escaped
from nsa_doctor.testing.training_runs import trained

_FAULTY_AT = 12
_LONGEST_REASON = 300


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    record = subject.record
    if not record.beats:
        raise NotApplicableError("the run has no heartbeat yet")
    found = endings(record)
    errors = [end for end in found if end.kind == "error"]
    if errors and not any(end.kind in ("another rank", "ranks differ") for end in found):  # reported by DST103, DST102
        first = errors[0]
        rank = f" on rank {first.rank}" if len(record.ranks) > 1 else ""
        yield Finding(
            message=f"the run ended{rank} after step {first.step or 0}: {escaped(first.reason[:_LONGEST_REASON])}",
            evidence={"run": subject.name, "step": first.step, "rank": first.rank, "reason": first.reason},
            repro=subject.reproduce,
        )
    for end in found:
        if end.kind == "stopped" and end.rank == 0:
            yield Note(message=f"the run was stopped after step {end.step or 0}: {escaped(end.reason)}")


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.setup import Machinery

    calls = 0
    loss = Machinery.precision

    def needs_too_much(machinery: Machinery) -> Any:
        nonlocal calls
        calls += 1
        if calls == _FAULTY_AT:
            raise MemoryError
        return loss(machinery)

    return trained(seams={"nsa.train.setup.Machinery.precision": needs_too_much}, steps=40, eval_every=0)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=810)
