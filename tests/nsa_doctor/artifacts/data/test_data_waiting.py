"""Of a loader that hangs, the line that holds it up; of a position that no loader takes back, nothing."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from nsa_doctor.artifacts.data.examine import data
from nsa_doctor.artifacts.data.request import data_request
from nsa_doctor.artifacts.data.subject import DataSubject, Opening
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict

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


PROGRAM = """
import threading
import torch
from torch.utils.data import DataLoader, Dataset

class Shards(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index > 4:
            threading.Event().wait(60)
        return torch.arange(9) + index

def make():
    return DataLoader(Shards(), batch_size=2, num_workers=1)
"""


def test_the_line_at_which_a_worker_process_hangs_is_named(tmp_path, monkeypatch):
    (tmp_path / "shards.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    asked = data_request(config=None, subject="shards:make", batches=4, timeout=3.0)
    (found,) = data(asked).findings
    assert found.message.startswith("batch 2 did not come within 3 s, and waits at ")
    assert (found.where.function, found.where.line) == ("__getitem__", 12)
