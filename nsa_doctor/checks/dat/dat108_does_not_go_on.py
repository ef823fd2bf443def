"""DAT108 does-not-go-on

Detects: a saved position from which the loader does not go on with the next batch, or that cannot be saved.
Matters: every resume reads some rows again and leaves others out, and no loss curve shows it.
Fix: save the position of the batch last given, not of the one read ahead, as plain numbers.

Example:
    # faulty
    state = {"row": reader.row}  # of the row that was read ahead
    # correct
    state = {"row": rows_given}  # counted where a batch is handed out
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsa_doctor.artifacts.data.reading import read, train_rows
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.checks._shared.batches import about
from nsa_doctor.checks.dat.dat107_other_rows_next_time import same
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding, Note


def run(subject: DataSubject) -> Iterator[Finding | Note]:
    once = train_rows(subject)
    taken = min(3, len(once.batches) - 1)
    if taken < 1:
        raise NotComparableError("one batch alone has none after it")
    part = read(subject, Opening(), taken, wants_state=True)
    if not part.state_kind:
        raise NotApplicableError("the loader reports no position that it accepts back (state() or state_dict())")
    text = attempt(lambda: json.dumps(part.state))
    state = part.state
    if isinstance(text, Caught):
        message = f"the position after {taken} batches cannot be written as JSON: {text.sentence}"
        if part.state_kind == "state":
            yield about(subject, message, batch=taken)
            return
        yield Note(message=message)
    else:
        state = json.loads(text)
    if not any(same(once.batches[0], other) for other in part.batches[:1]):
        raise NotComparableError("means nothing where the loader gives other rows each time")
    further = read(subject, Opening(state=state), 1)
    if not further.batches:
        why = further.end.sentence if further.end is not None else ""
        yield about(subject, f"from the position after {taken} batches no batch comes: {why or 'it ends'}", batch=taken)
    elif not same(further.batches[0], once.batches[taken]):
        found = next((i for i, each in enumerate(once.batches) if same(each, further.batches[0])), None)
        which = "none of the first" if found is None else f"batch {found}"
        message = f"from the position after {taken} batches the loader goes on with {which}, not with batch {taken}"
        yield about(subject, message, batch=taken, found=found)


def planted(subject: DataSubject) -> DataSubject:
    return replace(subject, open=lambda opening: _Ahead(subject.open(opening)))


class _Ahead:
    """Tells the position of a batch that it has read and not given."""

    def __init__(self, source: Any) -> None:
        self._source, self._iterator = source, iter(source)
        self._next = next(self._iterator)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        given, self._next = self._next, next(self._iterator)
        return given

    def state(self) -> Any:
        return self._source.state()

    def close(self) -> None:
        self._source.close()


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="data", blocked_by=("DAT107",))
