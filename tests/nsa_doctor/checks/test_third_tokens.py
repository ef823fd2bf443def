"""Scores that are another query's are found; every usual way to score relative positions is silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Attention(nn.Module):
    """Whose scores have a part for the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.places = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(512, WIDTH))

    def beside(self, q: Tensor) -> Tensor:
        return torch.zeros_like(q @ q.mT)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT + self.beside(q)).softmax(-1) @ v


def shifted(scores: Tensor) -> Tensor:
    """Rows moved to the left by the number of those that follow."""
    rows, length, distances = scores.shape
    return functional.pad(scores, (1, 0)).view(rows, distances + 1, length)[:, 1:].view_as(scores)


class Shifted(Attention):
    """As many distances as tokens, of which keys behind a query have none."""

    def beside(self, q: Tensor) -> Tensor:
        return shifted(q @ self.places[: q.shape[1]].T)


class ShiftedCausally(Shifted):
    def beside(self, q: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
        return super().beside(q).masked_fill(hidden, -torch.inf)


class ShiftedWide(Attention):
    """A score for every distance."""

    def beside(self, q: Tensor) -> Tensor:
        return shifted(q @ self.places[: 2 * q.shape[1] - 1].T)[..., : q.shape[1]]


class Gathered(Attention):
    def beside(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[1], device=q.device)
        every = q @ self.places[: 2 * q.shape[1]].T
        return every.gather(-1, (place - place[:, None] + q.shape[1]).expand(len(q), -1, -1))


class Mixed(Gathered):
    """Behind a convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + functional.avg_pool1d(x.mT, 3, 1, 1).mT)


class Forgetting(Attention):
    """Sums over the tokens between a query and a key."""

    def beside(self, q: Tensor) -> Tensor:
        gates = q.mean(-1).sigmoid().log().cumsum(1)
        return -(gates[:, None] - gates[..., None]).abs()


class Behind(Attention):
    """Behind a state that runs over the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.cumsum(1))


def examined(make: Callable[[], nn.Module]) -> Result:
    given = {"spec": ("bidirectional",), "max_length": 256}
    return run_check(registry.load("FWD260"), small_subject(make, width=WIDTH, **given))


def test_a_shift_that_brings_another_row_is_found() -> None:
    (finding,) = examined(Shifted).findings
    assert "another token 11 changes the scores of token 10 against 11 others" in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize(
    "make",
    [Attention, ShiftedCausally, ShiftedWide, Gathered, Mixed, Forgetting, Behind],
    ids=lambda make: make.__name__,
)
def test_usual_scores_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS
