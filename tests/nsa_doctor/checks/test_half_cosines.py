"""Products of rows of length one with rows of any length, which are taken for cosines (FWD281)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, ITEMS = 8, 23


class Towers(nn.Module):
    """Tokens, and what a method of its own makes of two views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.items, self.head = nn.Embedding(ITEMS, WIDTH), nn.Linear(WIDTH, ITEMS, bias=False)
        self.table = nn.Parameter(torch.randn(ITEMS, WIDTH))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scores(self.one(x), self.other(x)).mean(-1, keepdim=True)

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return self.log_scale.exp() * normalize(one, dim=-1) @ normalize(other, dim=-1).mT


class OneTower(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return self.log_scale.exp() * normalize(one, dim=-1) @ other.mT  # here


class OtherTower(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        other = other / other.norm(dim=-1, keepdim=True)
        scores = torch.einsum("bqd,bkd->bqk", one, other)  # here
        return scores * self.log_scale.exp()


class Attending(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        query = one * torch.rsqrt(one.square().sum(-1, keepdim=True) + 1e-6)
        scores = torch.matmul(query, other.transpose(-1, -2)) / 0.1  # here
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf).softmax(-1)


class Fused(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        query = normalize(one, dim=-1) * 4
        return nn.functional.scaled_dot_product_attention(query, other, one, scale=1.0)  # here


class OnWhatIsThere(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        keys = normalize(other, dim=-1).mT
        scores = torch.baddbmm(one.new_zeros(1, 1, 1), one, keys, beta=0, alpha=20.0)  # here
        return scores.softmax(-1)


class OverItems(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        items = self.items.weight
        return 12.0 * normalize(one, dim=-1) @ items.t()  # here


class OverMostItems(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return normalize(one, dim=-1) @ self.items.weight[1:].t() / 0.05  # here


class OverPrototypes(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        scores = torch.einsum("bsd,kd->bsk", normalize(one, dim=-1), self.table)  # here
        return self.table[scores.argmax(-1)] + one


class OverTheBest(Towers):
    """The choice is that of cosines, and the shares are not."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        best, _ = (one @ normalize(other, dim=-1).mT).topk(3, dim=-1)  # here
        return best.softmax(-1)


class OverLinear(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return 12.0 * self.head(normalize(one, dim=-1))


class ByAMatrix(Towers):
    """Of another layout: it projects."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(WIDTH, ITEMS))

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return (normalize(one, dim=-1) @ self.gate).softmax(-1)


class Normalised(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return (12.0 * normalize(one, dim=-1) @ normalize(self.table, dim=-1).t()).softmax(-1)


class OfEqualLengths(Towers):
    """Of a norm that leaves the length sqrt(D) on the other side."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        keys = nn.functional.rms_norm(other, (WIDTH,), eps=1e-9)
        return (normalize(one, dim=-1) @ keys.mT).softmax(-1)


class Distances(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        x = normalize(one, dim=-1)
        squares = x.square().sum(-1, keepdim=True) - 2 * x @ self.table.t() + self.table.square().sum(-1)
        return self.table[squares.argmin(-1)] + (-squares).softmax(-1).sum(-1, keepdim=True)


class DistancesFromHalves(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        x = normalize(one, dim=-1)
        scores = x @ self.table.t() - 0.5 * self.table.square().sum(-1)
        return self.table[scores.argmax(-1)] + one


class Weighing(Towers):
    """Weights times values; and what a state that is written with unit keys answers."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        keys = normalize(one, dim=-1)
        weights = (keys @ keys.mT).softmax(-1)
        state = keys.mT @ other
        return weights @ other + keys @ state * WIDTH**-0.5


class Means(Towers):
    """Of rows of length one, as prototypes are."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        x = normalize(one, dim=-1)
        centres = x.unflatten(0, (-1, 1)).mean(1)[:, :5] * 0.5 + x[:, 5:10] * 0.5
        return (x @ centres.mT / 0.1).softmax(-1)


class OnPurpose(Towers):
    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        # The magnitude of an item says how often it is asked for.
        return 12.0 * normalize(one, dim=-1) @ self.items.weight.t()


class NoScores(Towers):
    """A rotation, and a sum of unit rows, of which nothing is chosen."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)))[0]
        return normalize(one, dim=-1) @ turn @ other.mT


class BatchNormed(Towers):
    """Another norm than that of the length is on the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        image = self.norm(one.mT)
        return torch.einsum("bcl,bkc->bkl", image, normalize(other, dim=-1)) * self.log_scale.exp()


class WithAGain(Towers):
    """The root of the mean square is another norm, and it has a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        query = one * torch.rsqrt(one.square().mean(-1, keepdim=True) + 1e-6)
        return (self.gain * query @ normalize(other, dim=-1).mT).softmax(-1)


class Nearest(Towers):
    """One row's length changes no choice of this row."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        keys = normalize(other, dim=-1)
        near = (one @ keys.mT).argmax(-1, keepdim=True)
        few = torch.matmul(one, keys.mT).topk(3, -1).indices
        return other.gather(1, near.expand_as(one)) + few.to(one).mean(-1, keepdim=True)


class OfAMemory(Towers):
    """What is read from a matrix, by a gate."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        state = other.sigmoid().mT @ one
        return self.log_scale * (normalize(one, dim=-1) @ state)


class Pooled(Towers):
    """Of rows of length one again, the mean and the largest of neighbours."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        x = normalize(one, dim=-1)
        means = nn.functional.adaptive_avg_pool1d(x.mT, 4)
        most = x.unfold(1, 3, 1).amax(-1).mT
        return (x @ means / 0.1).softmax(-1).sum(-1, keepdim=True) + (x @ most / 0.1).softmax(-1).sum(-1, keepdim=True)


def by_function(scores: Tensor, weight: Tensor) -> Tensor:
    return linear(scores, weight)


class Margin(Towers):
    """Classes by angle: weights of length one, and rows whose length says how sure they are."""

    def scores(self, one: Tensor, other: Tensor) -> Tensor:
        return by_function(one, normalize(self.table, dim=-1)).softmax(-1)


def examined(make: Callable[[], nn.Module], **given: object) -> Result:
    return run_check(registry.load("FWD281"), small_subject(make, width=WIDTH, max_length=80, **given))


@pytest.mark.parametrize(
    "make",
    [OneTower, OtherTower, Attending, Fused, OnWhatIsThere, OverItems, OverMostItems, OverPrototypes, OverTheBest],
    ids=lambda each: each.__name__,
)
def test_one_side_of_length_one_is_found_at_the_product(make: type[nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert is_marked(finding.where.file, finding.where.line)
    assert "half of a cosine" in finding.message


@pytest.mark.parametrize(
    "make",
    [
        *(Towers, OverLinear, ByAMatrix, Normalised, OfEqualLengths, Distances, DistancesFromHalves, Weighing, Means),
        *(OnPurpose, NoScores, Margin, BatchNormed, WithAGain, Nearest, OfAMemory, Pooled),
    ],
    ids=lambda each: each.__name__,
)
def test_what_is_no_half_of_a_cosine_is_silent(make: type[nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def stepping(*, is_whole: bool) -> Callable[..., Tensor]:
    """A contrastive step over tokens."""

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        text = module(x).flatten(0, 1)[:, :WIDTH]
        image = text.tanh() + x.flatten(0, 1)
        image = normalize(image, dim=-1) if is_whole else image
        scores = normalize(text, dim=-1) @ image.t() / 0.07  # here
        loss = cross_entropy(scores, torch.arange(len(scores)))
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_so_is_that_of_a_contrastive_loss() -> None:
    (finding,) = examined(Towers, train_step=stepping(is_whole=False)).findings
    assert is_marked(finding.where.file, finding.where.line)
    assert "in train_step" in finding.message
    assert examined(Towers, train_step=stepping(is_whole=True)).findings == ()
