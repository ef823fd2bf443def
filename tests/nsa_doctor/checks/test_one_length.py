"""What goes wrong with rows at one length alone is found there, whatever the length, in output and gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.each_length import LONGEST, each_length
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class AtOneLength(nn.Linear):
    """A layer of tokens that does something else at one length."""

    def __init__(self, length: int, effect: Callable[[Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.length, self.effect = length, effect

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return self.effect(y) if x.shape[1] == self.length else y


def examined(code: str, make: Callable[[], nn.Module], *spec: str) -> Result:
    subject = small_subject(make, width=WIDTH, max_length=300, spec=spec)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize("length", [1, 77, 199, 256])
def test_rows_that_two_layers_exchange_in_turn(length: int) -> None:
    make = lambda: nn.Sequential(*(AtOneLength(length, lambda y: y.roll(1, 0)) for _ in range(2)))  # noqa: E731
    (finding,) = examined("FWD204", make).findings
    assert finding.evidence["length"] == length
    assert (finding.where.module, finding.evidence["operation"]) == ("0", "roll")


def mixing(y: Tensor) -> Tensor:
    """The same value, whose gradient is that of the mean over the rows."""
    mean = y.mean(0, keepdim=True).expand_as(y)
    return y.detach() + mean - mean.detach()


@pytest.mark.parametrize("length", [1, 77, 199, 256])
@pytest.mark.parametrize(("code", "spec"), [("GRD105", ("bidirectional",)), ("GRD109", ())])
def test_gradients_of_rows_that_one_length_mixes(code: str, spec: tuple[str, ...], length: int) -> None:
    (finding,) = examined(code, lambda: AtOneLength(length, mixing), *spec).findings
    assert finding.evidence["length"] == length


@pytest.mark.parametrize("code", ["FWD204", "GRD105", "GRD109"])
def test_what_each_length_leaves_alone_is_no_finding(code: str) -> None:
    result = examined(code, lambda: AtOneLength(0, mixing))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class InTraining(nn.Linear):
    """A layer of tokens whose gradient is that of the mean over the rows in training, and with dropout if so said."""

    def __init__(self, dropout: float = 0.0, mixes: bool = True) -> None:
        super().__init__(WIDTH, WIDTH)
        self.dropout, self.mixes = dropout, mixes

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(super().forward(x), self.dropout, self.training)
        return mixing(y) if self.mixes and self.training else y


class Normed(nn.Linear):
    """Statistics of the batch in training mix its rows, as they should."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x).mT).mT


def test_gradients_of_rows_that_training_mixes() -> None:
    (finding,) = examined("GRD105", InTraining).findings
    assert "at B=2, S=19 (train) differs" in finding.message


@pytest.mark.parametrize("make", [lambda: InTraining(0.5), lambda: InTraining(0.5, False), Normed])
def test_what_is_drawn_in_training_or_is_of_the_batch_is_no_finding(make: Callable[[], nn.Module]) -> None:
    result = examined("GRD105", make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_value_that_is_not_finite_at_one_length_is_observed() -> None:
    broken = lambda: AtOneLength(199, lambda y: y + (y - y.detach()).square().sqrt())  # noqa: E731
    result = examined("GRD105", broken, "bidirectional")
    assert [finding.code for finding in (*result.findings, *result.further)] == ["NAN102"]


def test_lengths_are_as_many_as_there_is_time_for() -> None:
    def tried(cost: int) -> list[int]:
        subject = Subject(
            name="tests", build=lambda _: nn.Linear(1, 1), forward=lambda m, x: x, input="embeddings", width=1
        )
        x = torch.ones(8)
        return list(each_length(subject, lambda length: [x + 1 for _ in range(cost * length)]))

    every, some = tried(1), tried(40)
    assert sorted(every) == list(range(1, LONGEST + 1))
    assert 5 < len(some) < LONGEST
    assert len({*some}) == len(some)
