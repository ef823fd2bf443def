"""DAT104 batch-does-not-come

Detects: a batch that takes longer than its limit, a loader that raises, and one that ends before it should.
Matters: every process of the run waits for it, with the GPUs they hold, and nothing says for what.
Fix: look at the line named; read with a time-out, retry, and say what is waited for.

Example:
    # faulty
    row = next(stream)  # does not return once the connection is gone
    # correct
    row = rows_read_ahead.get(timeout=60)  # a thread reads; queue.Empty is reported, and the shard opened again
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsa_doctor.artifacts.data.reading import End, Reading, read
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note

_SECONDS = 0.5


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    reading = read(subject, Opening(), subject.num_batches)
    end, count = reading.end, len(reading.batches)
    if end is None or end.kind == "unreadable":
        return
    what = "the data" if end.stage == "open" else "the first batch" if not count else f"batch {count}"
    evidence = {"kind": end.kind, "batch": count, "seconds": round(end.seconds, 3)}
    if end.kind == "late":
        yield about(subject, _late(subject, end, what), end.where, **evidence)
    elif end.kind == "raised":
        verb = "cannot be opened" if end.stage == "open" else "does not come"
        yield about(subject, f"{what} {verb}: {end.sentence}", end.where, **evidence)
    else:
        yield from _ended(subject, reading, evidence)


def _late(subject: DataSubject, end: End, what: str) -> str:
    doing = "be opened" if end.stage == "open" else "come"
    line = f", and waits at {end.where.line_text} ({end.where.function})" if end.where.file else ""
    detail = f": {end.sentence}" if end.sentence else ""
    return f"{what} did not {doing} within {subject.limit_seconds:g} s{line}{detail}"


def _ended(subject: DataSubject, reading: Reading, evidence: dict[str, Any]) -> Iterator[Finding | Note]:
    count = len(reading.batches)
    if not count:
        yield about(subject, "the loader ends before its first batch", **evidence)
    elif reading.length is not None and reading.length > count:
        yield about(subject, f"the loader says it has {reading.length} batches and ends after {count}", **evidence)
    elif subject.is_endless:
        yield about(subject, f"the loader ends after {count} batches, and it never should", **evidence)
    else:
        yield Note(message=f"the data ends after {count} batches, as an epoch of it may")


def planted(subject: DataSubject) -> DataSubject:
    def opened(opening: Opening) -> Iterator[Any]:
        for index, batch in enumerate(subject.open(opening)):
            if index:
                threading.Event().wait(60.0)  # a socket that nobody answers
            yield batch

    return replace(subject, open=opened, limit_seconds=_SECONDS)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke", answers=("no batches",))
