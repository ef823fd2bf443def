"""A source of batches with every batch changed, for injected bugs of checks of data."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nsa_doctor.artifacts.data.batch import Batch, read_batch
from nsa_doctor.artifacts.data.subject import DataSubject, Opening

Change = Callable[[Batch, int, Opening], Any]


def feeding(subject: DataSubject, change: Change) -> DataSubject:
    """The same source with every batch changed; its place in the data is that of the source."""

    def opened(opening: Opening) -> "_Fed":
        return _Fed(subject.open(opening), opening, change)

    return replace(subject, open=opened)


class _Fed:
    def __init__(self, source: Any, opening: Opening, change: Change) -> None:
        self._source, self._iterator, self._opening, self._change = source, iter(source), opening, change
        self._given = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = read_batch(next(self._iterator))
        self._given += 1
        return self._change(batch, self._given - 1, self._opening)

    def state(self) -> Any:
        return self._source.state()

    def close(self) -> None:
        self._source.close()
