"""DAT109 mostly-padding

Detects: batches of which hardly anything is to be predicted, or in which padding is predicted like text.
Matters: the first wastes the machine, the second gives a loss near nothing that says nothing.
Fix: pack documents to full rows, and give the targets of padding the number that the loss ignores.

Example:
    # faulty
    tokens = document + [padding] * (seq_len + 1 - len(document))
    inputs, targets = tokens[:-1], tokens[1:]  # padding is predicted like text
    # correct
    tokens = stream[start : start + seq_len + 1]  # documents packed one behind the other
    inputs, targets = tokens[:-1], tokens[1:]
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsa_doctor.artifacts.data.batch import Array, Batch
from nsa_doctor.artifacts.data.reading import train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.testing.feeds import feeding

_MOST_IGNORED, _NOTED = 0.9, 0.5
_MOST_PADDING = 0.5
_SHORTEST_RUN = 8


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    counts = [0, 0, 0, 0]  # places, ignored, padded, padded and predicted
    for batch in train_rows(subject).batches:
        ids = batch.inputs
        constant = (ids == ids[:, :1]).all(1)
        padded = _padded(ids) & ~constant[:, None]
        ignored = np.zeros(ids.shape, bool)
        if batch.ignored is not None and batch.ignored.shape == ids.shape:
            ignored = batch.ignored
        counts = [sum(pair) for pair in zip(counts, _counted(ignored, padded), strict=True)]
    total, left_out, filled, predicted = counts
    if not total:
        raise NotComparableError("the rows hold no token")
    if left_out > _MOST_IGNORED * total:
        yield about(subject, f"{_percent(left_out, total)} of the targets are not predicted", share=left_out / total)
    elif predicted > _MOST_PADDING * total:
        message = f"{_percent(predicted, total)} of the targets are one token repeated at a row's end, and predicted"
        yield about(subject, message, share=predicted / total)
    elif max(left_out, filled) > _NOTED * total:
        yield Note(message=f"{_percent(max(left_out, filled), total)} of the targets are not predicted or padding")


def _counted(ignored: Array, padded: Array) -> list[int]:
    return [ignored.size, int(ignored.sum()), int(padded.sum()), int((padded & ~ignored).sum())]


def _padded(ids: Array) -> Array:
    """Runs of one token at the end or the beginning of a row."""
    at_end = np.flip(np.logical_and.accumulate(np.flip(ids == ids[:, -1:], 1), 1), 1)
    at_start = np.logical_and.accumulate(ids == ids[:, :1], 1)
    return sum_of_long(at_end) | sum_of_long(at_start)


def sum_of_long(runs: Array) -> Array:
    """The runs that are long enough to be padding."""
    return runs & (runs.sum(1, keepdims=True) >= _SHORTEST_RUN)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


def planted(subject: DataSubject) -> DataSubject:
    def padding(batch: Batch, index: int, opening: Opening) -> object:
        ids = batch.inputs.copy()
        ids[:, ids.shape[1] // 4 :] = 0
        targets = np.concatenate([ids[:, 1:], ids[:, -1:]], 1)
        return replace(batch, inputs=ids, targets=targets, target_name="targets", ignored=None, documents=None).plain()

    return feeding(subject, padding)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke")
