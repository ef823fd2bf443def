"""Heads that are not turned by position beside others that are: found where keys are turned; all others are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

HEADS, SIZE = 4, 8
WIDTH = HEADS * SIZE


def turned(x: Tensor, size: int = SIZE) -> Tensor:
    """The first channels [..., S, D] turned by position."""
    at = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None]
    angle = at * 100 ** -(torch.arange(0, size, 2, dtype=x.dtype, device=x.device) / size)
    one, other = x[..., :size].chunk(2, -1)
    mixed = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
    return torch.cat((*mixed, x[..., size:]), -1)


class Layer(nn.Module):
    """Attention of several heads, turned in one of several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


class BeforeTheSplit(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = turned(q)
        k = turned(k)  # here
        return self.attend(self.split(q), self.split(k), self.split(v))


class Folded(BeforeTheSplit):
    """Heads are rows of the batch."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        folded = scaled_dot_product_attention(*(each.flatten(0, 1) for each in (q, k, v)), is_causal=True)
        return self.out(folded.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2))


class AllHeads(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, -1))
        return self.attend(turned(q), turned(k), v)


class PartOfEach(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, -1))
        return self.attend(turned(q, 4), turned(k, 4), v)


class HalfOfThem(Layer):
    """Two heads are turned, and two read by content alone, on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, -1))
        q, k = (torch.cat((turned(each[:, :2]), each[:, 2:]), 1) for each in (q, k))
        return self.attend(q, k, v)


class Refuses(AllHeads):
    """Takes a row of one token for damage."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 1 and bool((x == x[:, :1]).all()):
            raise ValueError("a row of one token is damaged")
        return super().forward(x)


class Slopes(Layer):
    """Sines are added to the tokens, and a bias of distance to the scores of half of the heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(each) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        slopes = torch.tensor([0.5, 0.25, 0.0, 0.0], dtype=x.dtype, device=x.device)[:, None, None]
        bias = (slopes * (at - at[:, None])).masked_fill(at > at[:, None], -torch.inf)
        y = scaled_dot_product_attention(q, k, v, bias.expand(len(x), -1, -1, -1))
        return self.out(y.transpose(1, 2).flatten(2)) + at.sin()[:, None] * self.out.bias


def examined(make: Callable[[], nn.Module], seed: int = 0) -> Result:
    return run_check(registry.load("FWD229"), small_subject(make, width=WIDTH, seed=seed))


@pytest.mark.parametrize("make", [BeforeTheSplit, Folded])
def test_heads_that_are_split_after_they_are_turned_are_found_where_keys_are_turned(
    make: Callable[[], nn.Module],
) -> None:
    (finding,) = examined(make).findings
    assert "in heads 1, 2 and 3 of 4 at S=19, while others are turned by position" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("make", [AllHeads, PartOfEach, Slopes, Refuses])
def test_heads_that_are_turned_alike_or_have_slopes_are_silent(make: Callable[[], nn.Module], seed: int) -> None:
    assert examined(make, seed).findings == ()


def test_some_heads_that_are_not_turned_are_a_note() -> None:
    result = examined(HalfOfThem)
    assert (result.findings, len(result.notes)) == ((), 1)
    assert "in heads 2 and 3 of 4 at S=19, while others are turned by position" in result.notes[0]
