"""Buffers that training moves by what is masked as padding (FWD273)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


class Centred(nn.Module):
    """Tokens less a mean that training follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.register_buffer("mean", torch.zeros(DIM))

    def follow(self, tokens: Tensor) -> None:
        self.mean.lerp_(tokens.detach().mean(0), 0.1)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if self.training:
            self.follow(x[keep])
        return self.layer(x - self.mean) * keep[..., None]


class CountsAll(Centred):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if self.training:
            self.follow(x.flatten(0, 1))  # here
        return self.layer(x - self.mean) * keep[..., None]


class CountsByHand(Centred):
    """A mean by a sum and a count, each on a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(DIM))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if self.training:
            self.total.add_(x.detach().sum((0, 1)))  # here
            self.count.add_(x[..., 0].numel())
            self.mean.copy_(self.total / self.count)
        return self.layer(x - self.mean) * keep[..., None]


class CountsZeros(Centred):
    """What it counts of the padding is zero, whatever stands there."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = x * keep[..., None]
        if self.training:
            self.follow(hidden.flatten(0, 1))  # here
        return self.layer(x - self.mean) * keep[..., None]


class Replaced(Centred):
    """A mean that is another tensor each time."""

    def follow(self, tokens: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * tokens.detach().mean(0)


class ReplacedByAll(Replaced):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if self.training:
            self.follow(x.flatten(0, 1))
        return self.layer(x - self.mean) * keep[..., None]


class Normed(Centred):
    """A norm by the batch, which sees padding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return super().forward(self.norm(x.mT).mT, keep) if not self.training else self.norm(x.mT).mT


class SeesLast(Centred):
    """What was last seen, for a look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(37, DIM))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        self.seen = x[-1].detach().clone()
        return super().forward(x, keep)


class TableOfPlaces(Centred):
    """Angles of as many places as came so far, kept in a table that is longer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.zeros(64, DIM))
        self.filled = 0

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if x.shape[1] > self.filled:
            self.filled = x.shape[1]
            self.angles[: self.filled] = torch.arange(self.filled)[:, None] / torch.arange(1, DIM + 1)
        return super().forward(x + self.angles[: x.shape[1]], keep)


def examined(make: Callable[[], nn.Module]) -> Result:
    everything = lambda module, x: module(x, torch.ones(x.shape[:2], dtype=torch.bool))  # noqa: E731
    padded = lambda module, x, keep: module(x, keep.bool())  # noqa: E731
    subject = small_subject(make, width=DIM, max_length=64, spec=("bidirectional",), padded=padded)
    return run_check(registry.load("FWD273"), replace(subject, forward=everything))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (CountsAll, "what padding there is moves mean in training"),
        (CountsByHand, "what padding there is moves mean and 2 other buffers in training"),
        (CountsZeros, "how much padding there is moves mean in training"),
    ],
)
def test_a_mean_that_counts_padding_is_found_where_it_is_given_it(make: Callable[[], nn.Module], words: str) -> None:
    (finding,) = examined(make).findings
    assert finding.message.startswith(words)
    assert is_marked(finding.where.file, finding.where.line)


def test_a_mean_that_is_replaced_is_found_at_its_module() -> None:
    (finding,) = examined(ReplacedByAll).findings
    assert finding.where.module_class == "ReplacedByAll"


@pytest.mark.parametrize("make", [Centred, Replaced, SeesLast, TableOfPlaces])
def test_a_mean_of_tokens_alone_is_left_alone(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_a_norm_by_the_batch_is_a_note() -> None:
    result = examined(Normed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.notes[0].startswith("what padding there is moves norm.running_mean")
