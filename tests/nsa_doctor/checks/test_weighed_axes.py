"""Weights that are summed over the tokens are normalised over them."""

import linecache
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

_DIM, _HEADS = 16, 4


def split(x):
    return x.unflatten(-1, (_HEADS, -1)).transpose(1, 2)  # [B, H, S, D]


def softmax_by_hand(scores, axis):
    powers = (scores - scores.amax(axis, keepdim=True)).exp()
    return powers / powers.sum(axis, keepdim=True)


class Mixer(nn.Module):
    """A layer around one way to weigh values: `weigh(layer, q, k, v)` of [B, H, S, D]."""

    def __init__(self, weigh):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(_DIM, 3 * _DIM), nn.Linear(_DIM, _DIM), nn.Linear(_DIM, _HEADS)
        self.mix, self.centres = nn.Parameter(torch.randn(_HEADS, _HEADS)), nn.Parameter(torch.randn(_HEADS, _DIM))
        self.weigh = weigh

    def forward(self, x):
        y = self.weigh(self, *(split(each) for each in self.qkv(x).chunk(3, dim=-1)), x)
        return x + self.out(y.transpose(1, 2).flatten(2) if y.dim() > 3 else y)


def attend(axis, softmax=torch.softmax):
    return lambda layer, q, k, v, x: softmax(q @ k.mT, axis) @ v


def attend_by_einsum(layer, q, k, v, x):
    weights = torch.einsum("bhqd,bhkd->bqhk", q, k).softmax(2)
    return torch.einsum("bqhk,bhkd->bhqd", weights, v)


def pool(axis):
    """One query of all tokens for each head, given to all."""

    def weigh(layer, q, k, v, x):
        weights = layer.heads(x).softmax(axis)  # [B, S, H]
        pooled = torch.einsum("bsh,bhsd->bhd", weights, v)
        return (pooled.flatten(1)[:, None] * x).contiguous()

    return weigh


def pool_one_by_one(axis):
    def weigh(layer, q, k, v, x):
        weights = layer.heads(x).softmax(axis).transpose(1, 2)
        return ((weights[..., None] * v).sum(2).flatten(1)[:, None] * x).contiguous()

    return weigh


WRONG = {  # and what the message says of the axes
    "queries": (attend(-2), "over axis 2, and they are summed over axis 3"),
    "heads": (attend(1), "over axis 1, and they are summed over axis 3"),
    "rows": (attend(0), "over axis 0, and they are summed over axis 3"),
    "by hand": (attend(1, softmax_by_hand), "over axis 1, and they are summed over axis 3"),
    "einsum": (attend_by_einsum, "over axis 2, and they are summed over axis 3"),
    "pooling": (pool(-1), "over axis 2, and they are summed over axis 1"),
    "pooling one by one": (pool_one_by_one(-1), "over axis 2, and they are summed over axis 1"),
}


def of_channels(layer, q, k, v, x):
    """Linear attention whose keys are features."""
    return q.softmax(-1) @ (k.softmax(-1).mT @ v)


def of_tokens(layer, q, k, v, x):
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def mixes_heads(layer, q, k, v, x):
    weights = torch.einsum("bhqk,hg->bgqk", (q @ k.mT).softmax(-1), layer.mix)
    return weights @ v


def normalises_again(layer, q, k, v, x):
    """Queries compete for keys, and then each takes a mean."""
    weights = (q @ k.mT).softmax(-2) + 1e-6
    return (weights / weights.sum(-1, keepdim=True)) @ v


def subtracts(layer, q, k, v, x):
    return ((q @ k.mT).softmax(-1) - 0.3 * (k @ q.mT).softmax(-1)) @ v


def assigns(layer, q, k, v, x):
    """Tokens to the nearest of centres: residuals summed over the tokens."""
    weights = layer.heads(x).softmax(-1)  # [B, S, centres]
    residuals = x[:, :, None] - layer.centres
    return (x + (weights[..., None] * residuals).sum(1).mean(1, keepdim=True)).contiguous()


def assigns_by_einsum(layer, q, k, v, x):
    weights = layer.heads(x).softmax(-1)
    residuals = x[:, :, None] - layer.centres
    return (x + torch.einsum("bsk,bskd->bkd", weights, residuals).mean(1, keepdim=True)).contiguous()


def gates(layer, q, k, v, x):
    weights = layer.heads(x).softmax(-1).transpose(1, 2)[..., None]  # [B, H, S, 1]
    return (q @ k.mT).softmax(-1) @ (weights * v)


def chooses_experts(layer, q, k, v, x):
    return torch.einsum("bsh,bhsd->bsd", layer.heads(x).softmax(-1), v).repeat(1, 1, _HEADS)


HEALTHY = {
    "keys": attend(-1),
    "keys by hand": attend(-1, softmax_by_hand),
    "keys first": lambda layer, q, k, v, x: (k @ q.mT).softmax(-2).mT @ v,
    "pooling": pool(1),
    "pooling one by one": pool_one_by_one(1),
    **{each.__name__: each for each in (of_channels, of_tokens, mixes_heads, normalises_again, subtracts, assigns)},
    **{each.__name__: each for each in (assigns_by_einsum, gates, chooses_experts)},
}


def examined(weigh) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(Mixer(weigh), nn.LayerNorm(_DIM), Mixer(attend(-1)))

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=_DIM, max_length=128)
    return run_check(registry.load("FWD233"), replace(made, packages=("tests",)))


@pytest.mark.parametrize("name", WRONG)
def test_weights_that_are_normalised_over_another_axis_are_found(name: str) -> None:
    weigh, words = WRONG[name]
    (finding,) = examined(weigh).findings
    assert words in finding.message
    assert (finding.where.module, finding.where.module_class) == ("0", "Mixer")
    line = linecache.getline(finding.where.file, finding.where.line)
    assert "softmax(" in line or "powers.sum" in line


@pytest.mark.parametrize("name", HEALTHY)
def test_weights_of_another_use_are_no_finding(name: str) -> None:
    result = examined(HEALTHY[name])
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
