"""DAT101 id-outside-vocabulary

Detects: token ids that are negative, beyond the vocabulary, or no whole numbers.
Matters: an embedding raises far from the data, or reads memory that is not its own; such a target is none.
Fix: use the tokenizer whose vocabulary the model has, and mark what is not to be predicted with one negative number.

Example:
    # faulty
    targets[is_padding] = tokenizer.vocab_size  # one more than the last id
    # correct
    targets[is_padding] = -100  # what cross_entropy ignores
"""

from collections.abc import Iterator

import numpy as np

from nsa_doctor.artifacts.data.batch import Array, Batch
from nsa_doctor.artifacts.data.reading import train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import counted
from nsa_doctor.testing.feeds import feeding

_FAR = 7


def run(subject: DataSubject) -> Iterator[Finding]:
    for index, batch in enumerate(train_rows(subject).batches):
        for name, ids in (("inputs", batch.inputs), ("targets", batch.targets)):
            if ids is None:
                continue
            fault = _fault(ids, None if name == "inputs" else batch.ignored, subject.vocab_size)
            if fault:
                where = f"in the {name} of batch {index}"
                yield about(subject, f"{fault} {where}", batch=index, parts=name)
                return


def _fault(ids: Array, ignored: Array | None, vocab_size: int | None) -> str:
    if ids.dtype.kind not in "iu":
        return f"ids are {ids.dtype}, not whole numbers,"
    bad = ids < 0
    if vocab_size is not None:
        bad = bad | (ids >= vocab_size)
    if ignored is not None:
        bad = bad & ~ignored
    if not bad.any():
        return ""
    row, column = np.argwhere(bad)[0]
    allowed = "negative" if vocab_size is None else f"outside 0 to {vocab_size - 1}"
    count = int(bad.sum())
    return f"{counted(count, 'id')} of {ids.size:,} {'is' if count == 1 else 'are'} {allowed}, the first " + (
        f"{ids[row, column]} in row {row}, column {column},"
    )


def planted(subject: DataSubject) -> DataSubject:
    def shifted(batch: Batch, index: int, opening: Opening) -> object:
        ids = batch.inputs.astype(np.int64)
        ids[:, -1] += (subject.vocab_size or 0) + _FAR
        return batch.plain() | {"input_ids": ids}

    return feeding(subject, shifted)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke")
