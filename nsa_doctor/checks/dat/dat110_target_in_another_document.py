"""DAT110 target-in-another-document

Detects: targets that begin another document and are predicted from the one before, where the batch marks documents.
Matters: nothing in one document says how the next begins; the model is taught noise at every boundary.
Fix: give the target of each document's last token the number that the loss ignores.

Example:
    # faulty
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    # correct
    begins = document[:, 1:] != document[:, :-1]
    inputs, targets = tokens[:, :-1], tokens[:, 1:].masked_fill(begins, -100)
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsa_doctor.artifacts.data.batch import Batch
from nsa_doctor.artifacts.data.reading import train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.feeds import feeding


def run(subject: DataSubject) -> Iterator[Finding]:
    batches = [batch for batch in train_rows(subject).batches if batch.documents is not None]
    batches = [batch for batch in batches if batch.targets is not None and batch.targets.shape == batch.inputs.shape]
    if not batches:
        raise NotApplicableError("the batches do not mark documents and targets")
    boundaries = crossed = 0
    first = ""
    for index, batch in enumerate(batches):
        documents, ignored = batch.documents, batch.ignored
        assert documents is not None
        assert ignored is not None
        begins = documents[:, 1:] != documents[:, :-1]
        width = min(begins.shape[1], ignored.shape[1])
        late = 1 if subject.targets == "same" else 0  # labels that the model shifts lie one column later
        bad = begins[:, : width - late] & ~ignored[:, late:width]
        boundaries += int(begins[:, : width - late].sum())
        crossed += int(bad.sum())
        if bad.any() and not first:
            row, column = np.argwhere(bad)[0]
            first = f"the first in batch {index}, row {row}, column {column + late}"
    if crossed:
        message = f"{crossed} of {boundaries} targets that begin another document are predicted, {first}"
        yield about(subject, message, targets=crossed)


def planted(subject: DataSubject) -> DataSubject:
    def crossing(batch: Batch, index: int, opening: Opening) -> object:
        documents = np.arange(batch.inputs.shape[1]) // 5
        targets = np.concatenate([batch.inputs[:, 1:], batch.inputs[:, :1]], 1)
        crossed = replace(batch, targets=targets, target_name="targets", ignored=None)
        return replace(crossed, documents=np.broadcast_to(documents, batch.inputs.shape)).plain()

    return feeding(subject, crossing)


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", profile="smoke")
