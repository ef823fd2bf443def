"""A bias of scores that grows with distance, or that lets no head see far, is found; ALiBi as it is meant is silent."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, HEADS = 32, 4
SLOPES = 2.0 ** (-8 * torch.arange(1, HEADS + 1) / HEADS)[:, None, None]


class Layer(nn.Module):
    """Attention with a bias [H or 1, S or 1, S] of distances query - key [S, S], causal or not."""

    def __init__(self, bias: Callable[[Tensor], Tensor], *, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.bias, self.is_causal = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), bias, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        position = torch.arange(x.shape[1])
        distance = position[:, None] - position
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(distance).to(x.dtype)
        if self.is_causal:
            scores = scores.masked_fill(distance < 0, -torch.inf)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Forgetting(nn.Module):
    """What lies between a query and its key decides how much of the key is left, and it is little."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.forget = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, HEADS)
        nn.init.constant_(self.forget.bias, -3.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        left = nn.functional.logsigmoid(self.forget(x)).cumsum(1).mT
        scores = q @ k.mT * q.shape[-1] ** -0.5 + left[..., None] - left[..., None, :]
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return x + (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def wrong_sign(distance: Tensor) -> Tensor:
    return SLOPES * distance  # here


def _examined(bias: Callable[[Tensor], Tensor], *, is_causal: bool) -> Result:
    return _checked(lambda: Layer(bias, is_causal=is_causal))


def _checked(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(name="biased", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM)
    return run_check(registry.load("FWD247"), subject)


HEALTHY: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "causal": (lambda distance: -SLOPES * distance, True),
    "by the key alone": (lambda distance: -SLOPES * distance[-1:], True),
    "both ways": (lambda distance: -SLOPES * distance.abs(), False),
    "no bias": (lambda distance: 0 * SLOPES * distance, True),
    "square": (lambda distance: -SLOPES * distance.square(), False),
    "buckets, drawn": (lambda distance: torch.randn(1, 64, generator=torch.Generator())[:, distance.abs()], False),
}
WRONG: dict[str, tuple[Callable[[Tensor], Tensor], bool, str]] = {
    "wrong sign": (wrong_sign, True, "4 of 4 heads score a key higher the farther it lies"),
    "one head": (lambda distance: torch.cat((SLOPES[:1], -SLOPES[1:])) * distance, True, "1 of 4 heads score"),
    "not absolute": (lambda distance: -SLOPES * distance, False, "4 of 4 heads score a key higher the farther"),
    "too steep": (lambda distance: -(1 / SLOPES) * distance, True, "in every head a key's score falls by 4 or more"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_scores_that_fall_with_distance_are_silent(name: str) -> None:
    bias, is_causal = HEALTHY[name]
    result = _examined(bias, is_causal=is_causal)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("name", WRONG)
def test_a_bias_for_what_is_far_is_found(name: str) -> None:
    bias, is_causal, words = WRONG[name]
    (finding,) = _examined(bias, is_causal=is_causal).findings
    assert words in finding.message


def test_a_forgetting_that_tokens_decide_is_no_bias_of_distance() -> None:
    assert _checked(Forgetting).verdict is Verdict.PASS


def test_the_line_that_makes_the_bias_is_named() -> None:
    (finding,) = _examined(wrong_sign, is_causal=True).findings
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
