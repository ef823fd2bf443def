"""DAT107 other-rows-next-time

Detects: a loader that gives other rows when it is opened again with the same seed.
Matters: no run can be repeated, no bad step looked at again, and a resumed run reads rows twice and others never.
Fix: draw the order from a generator seeded by the configuration, not from the clock, the process or a set's order.

Example:
    # faulty
    files = list(set(folder.glob("*.parquet")))  # a set's order is another one in every process
    random.shuffle(files)
    # correct
    files = sorted(folder.glob("*.parquet"))
    random.Random(config.seed).shuffle(files)
"""

from collections.abc import Iterator

import numpy as np

from nsa_doctor.artifacts.data.batch import Array, Batch
from nsa_doctor.artifacts.data.reading import read, train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.feeds import feeding


def run(subject: DataSubject) -> Iterator[Finding]:
    once = train_rows(subject)
    again = read(subject, Opening(), subject.num_batches, again=1)
    is_whole = once.end is None or once.end.kind == "ended"  # what keeps batches back is reported by another check
    if is_whole and len(once.batches) != len(again.batches):
        why = f": {again.end.sentence}" if again.end and again.end.sentence else ""
        message = f"opened again the loader gives {len(again.batches)} batches in place of {len(once.batches)}{why}"
        yield about(subject, message, batches=len(again.batches))
        return
    for index, (one, other) in enumerate(zip(once.batches, again.batches, strict=False)):
        if not same(one, other):
            yield about(subject, f"opened again with the same seed, batch {index} holds other rows", batch=index)
            return


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches ask for the same."""
    if not _equal(one.inputs, other.inputs):
        return False
    if one.targets is None or other.targets is None:
        return one.targets is other.targets
    return _equal(one.targets, other.targets)


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan="f" in (one.dtype.kind, other.dtype.kind))


def planted(subject: DataSubject) -> DataSubject:
    lives: list[Opening] = []

    def drifting(batch: Batch, index: int, opening: Opening) -> object:
        lives.extend([opening] * (index == 0))
        return batch.plain() | {"input_ids": np.roll(batch.inputs, len(lives), axis=0)}

    return feeding(subject, drifting)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data")
