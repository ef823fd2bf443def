"""DAT102 row-of-wrong-length

Detects: rows longer or shorter than the length that was configured, of different lengths, or too many in a batch.
Matters: an over-long row costs memory nobody planned for, and positions the model never learns; a short one is wasted.
Fix: cut and pack documents to rows of seq_len tokens, and one more where targets are made from the same row.

Example:
    # faulty
    rows = [document[start : start + seq_len] for start in range(0, len(document), seq_len)]  # the last is shorter
    # correct
    rows = stream[: len(stream) // seq_len * seq_len].view(-1, seq_len)  # the documents, one behind the other
"""

from collections.abc import Iterator

import numpy as np

from nsa_doctor.artifacts.data.batch import Batch
from nsa_doctor.artifacts.data.reading import Reading, read, train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.feeds import feeding

_LONGER = 3


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    end = read(subject, Opening(), subject.num_batches).end
    if end is not None and end.kind == "unreadable":
        yield about(subject, f"the loader gives {end.sentence}", kind="unreadable")
        return
    reading = train_rows(subject)
    for index, batch in enumerate(reading.batches):
        fault = _parts_differ(batch) or _wrong_length(subject, batch)
        if fault:
            yield about(subject, f"{fault} in batch {index}", batch=index, columns=int(batch.inputs.shape[1]))
            return
    yield from _wrong_count(subject, reading)


def _parts_differ(batch: Batch) -> str:
    """Inputs and targets that do not lie side by side."""
    if batch.targets is not None and batch.targets.shape != batch.inputs.shape:
        return f"inputs are {list(batch.inputs.shape)} and targets {list(batch.targets.shape)}"
    return ""


def _wrong_length(subject: DataSubject, batch: Batch) -> str:
    columns, wanted = int(batch.inputs.shape[1]), subject.seq_len
    if wanted is None:
        return "rows hold no token" if columns == 0 else ""
    allowed = (wanted,) if batch.targets is not None else (wanted, wanted + 1)
    is_padded = batch.ignored is not None and bool(batch.ignored.any())
    if columns in allowed or (columns < wanted and (is_padded or subject.targets == "same")):
        return ""  # a batch padded to its longest row is shorter
    return f"rows have {columns} tokens where seq_len is {wanted},"


def _wrong_count(subject: DataSubject, reading: Reading) -> Iterator[Finding | Note]:
    counts, wanted = [batch.num_rows for batch in reading.batches], subject.batch_size
    if wanted is None:
        return
    odd = [index for index, count in enumerate(counts) if count != wanted]
    if max(counts) > wanted or len(odd) > max(1, len(counts) // 4) or (odd and subject.is_endless):
        message = f"{counts[odd[0]]} rows where batch_size is {wanted} in batch {odd[0]}"
        yield about(subject, message, batch=odd[0], rows=counts[odd[0]])
    elif odd:
        yield Note(message=f"batch {odd[0]} has {counts[odd[0]]} rows and not {wanted}, as the last of an epoch may")


def planted(subject: DataSubject) -> DataSubject:
    def longer(batch: Batch, index: int, opening: Opening) -> object:
        wide = {
            name: np.concatenate([value, value[:, :_LONGER]], axis=1) if getattr(value, "ndim", 0) == 2 else value
            for name, value in batch.plain().items()
        }
        return wide if index else batch.plain()

    return feeding(subject, longer)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke")
