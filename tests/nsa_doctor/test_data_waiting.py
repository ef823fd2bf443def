"""Of a loader that hangs, the line that holds it up; of a position that no loader takes back, nothing."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from nsa_doctor import registry
from nsa_doctor.data.subject import DataSubject, Opening
from nsa_doctor.finding import Verdict
from nsa_doctor.judging import judge

_SECONDS = 0.3


def subject(open_one: object) -> DataSubject:
    return DataSubject(name="it", open=open_one, limit_seconds=_SECONDS, num_batches=4, packages=("tests",))


class ReadsAhead:
    """Batches come from a thread that waits for something itself."""

    def __init__(self) -> None:
        self.batches: queue.Queue[object] = queue.Queue()
        self.ends = threading.Event()
        threading.Thread(target=self.reads, daemon=True).start()

    def reads(self) -> None:
        self.ends.wait(10 * _SECONDS)

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        with suppress(queue.Empty):
            return self.batches.get(timeout=10 * _SECONDS)
        raise StopIteration


class TellsAPosition:
    """A position that can be asked for and not be given back."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        self.given += 1
        return {"input_ids": np.arange(20).reshape(2, 10) + self.given}

    def state(self) -> dict[str, int]:
        return {"given": self.given}


def test_the_thread_that_is_waited_for_is_to_blame():
    made: list[ReadsAhead] = []

    def opened(opening: Opening) -> ReadsAhead:
        made.append(ReadsAhead())
        return made[0]

    result = judge(registry.load("DAT104"), subject(opened))
    made[0].ends.set()
    assert [finding.where.function for finding in result.findings] == ["reads"]


def test_a_position_that_cannot_be_given_back_is_no_finding():
    def opened(opening: Opening) -> TellsAPosition:
        assert opening.state is None
        return TellsAPosition()

    result = judge(registry.load("DAT108"), subject(opened))
    assert (result.verdict, result.findings, result.is_required) == (Verdict.SKIP, (), False)
