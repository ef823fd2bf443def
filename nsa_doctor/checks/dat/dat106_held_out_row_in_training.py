"""DAT106 held-out-row-in-training

Detects: rows of the held-out split of which a half or more is among the training rows.
Matters: the held-out loss then measures memory, and overfitting cannot be seen.
Fix: split by document before packing, by a hash of the text, so that copies of a document stay on one side.

Example:
    # faulty
    random.shuffle(rows)  # rows of one document, and its copies, fall on both sides
    held_out, train = rows[:1000], rows[1000:]
    # correct
    is_held_out = {text: zlib.crc32(text.encode()) % 100 == 0 for text in documents}
    held_out, train = ([text for text in documents if is_held_out[text] == side] for side in (True, False))
"""

from collections.abc import Iterator
from dataclasses import replace

from nsa_doctor.artifacts.data.reading import read, train_rows
from nsa_doctor.artifacts.data.rows import rows_found_in
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note

_MOST_FOUND = 0.1


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    if "split" not in subject.takes:
        raise NotApplicableError("the loader offers no held-out split")
    training = train_rows(subject)
    held = read(subject, Opening(split="heldout"), max(1, subject.num_batches // 2))
    if not held.batches:
        raise NotComparableError(_why(held.end.sentence if held.end else ""))
    count = sum(batch.num_rows for batch in held.batches)
    found = rows_found_in(held.batches, training.batches)
    message = f"{len(found)} of {count} held-out rows are in the training rows looked at, the first is row {found[:1]}"
    message = message.replace("[", "").replace("]", "")
    if len(found) > max(1, _MOST_FOUND * count):
        yield about(subject, message, split="heldout", rows=len(found))
    elif found:
        yield Note(message=message)


def _why(sentence: str) -> str:
    return f"no held-out batch came{f': {sentence}' if sentence else ''}"


def planted(subject: DataSubject) -> DataSubject:
    return replace(subject, open=lambda opening: subject.open(replace(opening, split="train")))


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data")
