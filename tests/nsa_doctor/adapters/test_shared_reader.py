"""Several tokens behind a prompt are held to one pass where one function reads both, and nowhere else."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


@dataclass
class Session:
    """What decoding carries from call to call."""

    total: Tensor | float = 0.0
    length: int = 0


class Means(nn.Module):
    """Each token's mean with all before it; `slip` shifts the count of several tokens behind others."""

    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self.mix, self.slip = nn.Linear(DIM, DIM), slip

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x, Session())

    def read(self, x: Tensor, session: Session, one_by_one: bool = False) -> Tensor:
        sums = session.total + (x[:, :1].expand_as(x) if one_by_one else x.cumsum(1))
        first = session.length + 1 + (self.slip if session.length and x.shape[1] > 1 else 0)
        session.total, session.length = sums[:, -1:], session.length + x.shape[1]
        return self.mix(sums / torch.arange(first, first + x.shape[1], dtype=x.dtype)[:, None])

    def prefill(self, x: Tensor) -> tuple[Tensor, Session]:
        session = Session()
        return self.read(x, session), session

    def step(self, x: Tensor, session: Session) -> tuple[Tensor, Session]:
        return self.read(x, session), session


class Switched(Means):
    """A step tells its reader that it has one token, and is wrong where it has more."""

    def step(self, x: Tensor, session: Session) -> tuple[Tensor, Session]:
        return self.read(x, session, one_by_one=True), session


class Looped(Means):
    """A prompt is read token by token."""

    def prefill(self, x: Tensor) -> tuple[Tensor, Session]:
        session = Session()
        return torch.cat([self.read(token, session) for token in x.split(1, 1)], 1), session


def found(make: type[Means], slip: int = 0) -> Subject:
    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), lambda: make(slip))


@pytest.mark.parametrize("make", [Means, Looped])
def test_right_steps_are_found_whatever_their_second_argument_is_called(make: type[Means]) -> None:
    subject = found(make)
    assert "decoded by prefill(x) and step(x, session), which was found by its names" in subject.notes
    assert [run_check(registry.load(code), subject).verdict for code in ("DEC101", "DEC102")] == [Verdict.PASS] * 2


def test_several_tokens_that_the_reader_of_prompts_reads_wrongly_are_found() -> None:
    subject = found(Means, slip=1)
    assert run_check(registry.load("DEC101"), subject).verdict is Verdict.PASS
    assert run_check(registry.load("DEC102"), subject).verdict is Verdict.FAIL


@pytest.mark.parametrize(("make", "slip"), [(Switched, 0), (Looped, 1)])
def test_a_step_of_single_tokens_is_given_no_more(make: type[Means], slip: int) -> None:
    subject = found(make, slip)
    assert any("one token at a time" in note for note in subject.notes)
    assert run_check(registry.load("DEC102"), subject).verdict is Verdict.SKIP
