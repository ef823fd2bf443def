"""A choice of the largest few on which nothing depends is found; one that anything depends on is silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Sparse(nn.Module):
    """Attention to the four best keys of each query."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def seen(self, scores: Tensor) -> Tensor:
        best = scores.topk(min(4, scores.shape[-1]), dim=-1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT
        return scores.masked_fill(~self.seen(scores), -torch.inf).softmax(-1) @ v


class AllSeen(Sparse):
    def seen(self, scores: Tensor) -> Tensor:
        best = scores.topk(min(4, scores.shape[-1]), dim=-1).indices
        return torch.ones_like(scores, dtype=torch.bool).scatter(-1, best, True)


class WrittenOver(Sparse):
    def seen(self, scores: Tensor) -> Tensor:
        seen = super().seen(scores)
        return seen | ~seen


class Threshold(Sparse):
    """Of which the values count, and not where they stand."""

    def seen(self, scores: Tensor) -> Tensor:
        return scores >= scores.topk(min(4, scores.shape[-1]), dim=-1).values[..., -1:]


class Counted(nn.Module):
    """A choice that a buffer counts, and no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("counts", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        best = y.detach().topk(2, dim=-1).indices.flatten()
        self.counts += torch.bincount(best, minlength=WIDTH)
        return y


class Whole(Sparse):
    """Chooses all there are."""

    def seen(self, scores: Tensor) -> Tensor:
        best = scores.topk(scores.shape[-1], dim=-1).indices
        return torch.ones_like(scores, dtype=torch.bool).scatter(-1, best, True)


class Near(Sparse):
    """The four nearest, all in one place where nobody says where they are."""

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = x.new_zeros(*x.shape[:2], 2) if places is None else places
        near = self.seen(-torch.cdist(places, places))
        scores = torch.where(near, q @ k.mT, q @ k.mT)
        return scores.softmax(-1) @ v


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD259"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize(("make", "function"), [(AllSeen, "seen"), (WrittenOver, "seen")])
def test_a_choice_that_changes_nothing_is_found(make: Callable[[], nn.Module], function: str) -> None:
    (finding,) = examined(make).findings
    assert "the 4 of 67 that are chosen here change nothing" in finding.message
    assert (finding.where.file, finding.where.function) == (__file__, function)


@pytest.mark.parametrize("make", [Sparse, Threshold, Counted])
def test_a_choice_that_something_depends_on_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_a_choice_of_all_is_none() -> None:
    assert "chooses no largest few" in examined(Whole).reason


def test_of_equal_ones_none_is_chosen() -> None:
    assert "chooses no largest few" in examined(Near).reason
