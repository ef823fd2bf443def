"""A layer that says it has several heads and weighs one map of scores is found; others that weigh few are silent."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, HEADS = 32, 4


class Layer(nn.Module):
    """Attention whose scores `attend` makes of queries, keys and values [B, S, DIM]."""

    def __init__(self, way: str, num_heads: int = HEADS) -> None:
        super().__init__()
        self.qkv, self.out, self.way, self.num_heads = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), way, num_heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(getattr(self, self.way)(q, k, v))

    def never_split(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.reshape(len(each), -1, 1, DIM).transpose(1, 2) for each in (q, k, v))  # here
        return ((q @ k.mT) * (DIM // self.num_heads) ** -0.5).softmax(-1).matmul(v)[:, 0]

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def one_by_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(each.chunk(self.num_heads, -1) for each in (q, k, v)), strict=True)
        return torch.cat([(a @ b.mT / DIM**0.5).softmax(-1) @ c for a, b, c in parts], dim=-1)

    def joined(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (q, k, v))
        return ((q @ k.mT).mean(1, keepdim=True).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def linear(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.softmax(-1) @ (k.softmax(1).mT @ v)


class Head(nn.Module):
    """One head of several that are modules of their own, which knows how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv = HEADS, nn.Linear(DIM, 3 * DIM // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v


class Heads(nn.Module):
    """Four of them side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.ModuleList([Head() for _ in range(HEADS)]), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(torch.cat([head(x) for head in self.heads], dim=-1))


class Within(nn.Module):
    """Attention of heads that were split before, with a bias that comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, nn.Linear(1, 1)

    def forward(self, bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.scale((q @ k.mT)[..., None])[..., 0] + bias).softmax(-1) @ v


class Biased(nn.Module):
    """Splits heads for it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.within = nn.Linear(DIM, 3 * DIM), Within()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        bias = x.new_zeros(1, HEADS, x.shape[1], x.shape[1])
        return x + self.within(bias, q, k, v).transpose(1, 2).flatten(2)


def examined(module: nn.Module) -> Result:
    subject = small_subject(lambda: module, width=DIM, max_length=128)
    return run_check(registry.load("FWD235"), subject)


@pytest.mark.parametrize("where", ["itself", "a part"])
def test_one_map_of_scores_is_found_where_four_heads_are_held(where: str) -> None:
    layer = Layer("never_split")
    (finding,) = examined(layer if where == "itself" else nn.Sequential(Layer("split"), layer)).findings
    assert (
        "weighs one map of scores for each row, of products of 32 channels, and its num_heads is 4" in finding.message
    )
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")
    assert finding.where.module == ("" if where == "itself" else "1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layer("split"),
        lambda: Layer("one_by_one"),
        lambda: Layer("joined"),
        Heads,
        Biased,
        lambda: Layer("linear"),
        lambda: Layer("never_split", num_heads=1),
        lambda: nn.TransformerEncoderLayer(DIM, HEADS, DIM, 0.0, batch_first=True),
        lambda: nn.Linear(DIM, DIM),
    ],
    ids=["split", "one by one", "joined", "modules", "split before", "linear", "one head", "of torch", "no attention"],
)
def test_as_many_maps_as_heads_are_silent(make) -> None:
    result = examined(make())
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
