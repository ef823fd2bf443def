"""DAT105 row-comes-again

Detects: rows that come again before the others have come, batches that are all the same, rows of one token alone.
Matters: the loss falls because the rows are known by heart, and most of the data is never read.
Fix: keep one iterator for the whole run, and give each worker and each rank rows of its own.

Example:
    # faulty
    for step in range(steps):
        batch = next(iter(loader))  # the first batch at every step
    # correct
    batches = iter(loader)
    for step in range(steps):
        batch = next(batches)
"""

from collections import Counter
from collections.abc import Iterator

from nsa_doctor.artifacts.data.batch import Batch
from nsa_doctor.artifacts.data.reading import Reading, read, train_rows
from nsa_doctor.artifacts.data.rows import constant_rows, is_in_epochs, keys, num_repeats
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.feeds import feeding

_MOST_REPEATS = 0.2
_MOST_CONSTANT = 0.5


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    reading = train_rows(subject)
    seen = keys(reading.batches)
    constant = constant_rows(reading.batches)
    total = sum(batch.num_rows for batch in reading.batches)
    if len(constant) > _MOST_CONSTANT * total:
        token, count = Counter(constant).most_common(1)[0]
        yield about(subject, f"{count} of {total} rows hold nothing but token {token}", rows=count)
        return
    repeats, message = num_repeats(seen), None
    if _is_declared(reading) or not repeats:
        pass
    elif is_in_epochs(seen, reading.batches[0].num_rows):
        message = f"rows come again after {len(set(seen))} others, as those of a small corpus do"
    elif len(set(seen)) <= reading.batches[0].num_rows:
        yield about(subject, f"every batch holds the same {len(set(seen))} rows", rows=repeats)
        return
    elif repeats >= 3 and repeats > _MOST_REPEATS * len(seen):
        yield about(subject, f"{repeats} of {len(seen)} rows came before, and others not yet", rows=repeats)
        return
    else:
        message = f"{repeats} of {len(seen)} rows came before"
    if message:
        yield Note(message=message)
    yield from _shared_by_ranks(subject, reading, message is not None or _is_declared(reading))


def _is_declared(reading: Reading) -> bool:
    """Whether the loader says that it has begun again."""
    return any(batch.epoch for batch in reading.batches)


def _shared_by_ranks(subject: DataSubject, alone: Reading, is_small: bool) -> Iterator[Finding]:
    """Rows that two ranks of one world both get."""
    if "rank" not in subject.takes or subject.num_ranks < 2 or is_small:
        return
    count = subject.num_ranks
    openings = [Opening(rank=rank, world_size=count) for rank in range(count)]
    held = [keys(read(subject, opening, max(1, len(alone.batches) // 2)).batches) for opening in openings]
    for rank in range(1, count):
        both = len(set(held[0]) & set(held[rank]))
        if both > _MOST_REPEATS * len(held[rank]):
            message = f"rank {rank} of {count} gets {both} of its {len(held[rank])} rows from those of rank 0"
            yield about(subject, message, rank=rank, rows=both)
            return


def planted(subject: DataSubject) -> DataSubject:
    first: dict[Opening, object] = {}

    def stuck(batch: Batch, index: int, opening: Opening) -> object:
        return first.setdefault(opening, batch.plain())

    return feeding(subject, stuck)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke")
