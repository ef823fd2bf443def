"""A future that only half precision lets through is found; what merely rounds otherwise in it is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 16
Weigh = Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Attention whose scores and distances [S, S] (from query back to key) `weigh` makes weights of."""

    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.qkv, self.weigh = nn.Linear(WIDTH, 3 * WIDTH), weigh

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1], device=x.device)
        return x + self.weigh(q @ k.mT / WIDTH**0.5, at[:, None] - at) @ v


def decays(scores: Tensor, back: Tensor) -> Tensor:
    """What is to come is at an infinite distance, and 1 to the power of it is 1: so it is once 0.999 is rounded."""
    decay = torch.tensor(0.999, dtype=scores.dtype, device=scores.device)
    return scores * decay ** torch.where(back < 0, torch.inf, back.to(scores.dtype))


def hidden(scores: Tensor, back: Tensor) -> Tensor:
    return scores.masked_fill(back < 0, -torch.inf).softmax(-1)


def hidden_by_the_least(scores: Tensor, back: Tensor) -> Tensor:
    return scores.masked_fill(back < 0, torch.finfo(scores.dtype).min).softmax(-1)


def chosen(scores: Tensor, back: Tensor) -> Tensor:
    scores = scores.masked_fill(back < 0, -torch.inf)
    least = scores.topk(min(4, len(back)), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1)


class Cancels(nn.Module):
    """A mean of all before as what is left of the whole sum: right, and half precision rounds it by a tenth of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.softplus(self.up(x))
        before = h.sum(1, keepdim=True) - h.flip(1).cumsum(1).flip(1) + h
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.down(self.norm(before / count))


class Refuses(Attention):
    """A module that cannot be had in half precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        if fn(torch.zeros(1)).dtype == torch.bfloat16:
            raise TypeError("this module is not for bfloat16")
        return super()._apply(fn, recurse)


def examined(weigh: Weigh, seed: int = 0) -> Result:
    return result_of(lambda: Attention(weigh), seed)


def result_of(make: Callable[[], nn.Module], seed: int = 0) -> Result:
    subject = small_subject(make, width=WIDTH, max_length=256, seed=seed)
    return run_check(registry.load("FWD201"), subject)


def test_a_future_that_half_precision_lets_through_is_found() -> None:
    (finding,) = examined(decays).findings
    assert "in bfloat16 alone: tokens >=" in finding.message
    assert finding.control == "in float64 they do not"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("weigh", [hidden, hidden_by_the_least, chosen])
def test_what_rounds_otherwise_is_silent(weigh: Weigh, seed: int) -> None:
    result = examined(weigh, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("make", [Cancels, lambda: Refuses(hidden)])
def test_rounding_that_carries_the_future_and_a_module_that_refuses_are_silent(
    make: Callable[[], nn.Module], seed: int
) -> None:
    result = result_of(make, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
