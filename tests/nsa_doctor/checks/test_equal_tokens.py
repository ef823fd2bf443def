"""Tokens laid out as heads, and heads as tokens, are found; what else tells equal tokens apart is silent."""

import linecache
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, HEADS = 32, 4
Lay = Callable[[Tensor], Tensor]


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def join(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def split_wrongly(x: Tensor) -> Tensor:
    return x.reshape(len(x), HEADS, x.shape[1], -1)  # here


def join_wrongly(y: Tensor) -> Tensor:
    return y.reshape(len(y), y.shape[2], -1)  # here


def join_channels_first(y: Tensor) -> Tensor:
    return y.transpose(2, 3).reshape(len(y), y.shape[2], -1)  # here


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


class Layer(nn.Module):
    """Attention of tokens that `lay` lays out as heads and `back` joins again; `change` is done to values before."""

    def __init__(
        self, lay: Lay = split, back: Lay = join, attend: Callable[..., Tensor] = by_hand, change: Lay | None = None
    ) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.lay, self.back, self.attend, self.change = lay, back, attend, change

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.change is not None:
            v = self.change(v)
        return x + self.out(self.back(self.attend(self.lay(q), self.lay(k), self.lay(v))))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def of_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All queries share a head's keys and values."""
    return by_hand(q, k[:, :1], v[:, :1]).contiguous()


def placed(v: Tensor) -> Tensor:
    """Positions in the values themselves."""
    return v + torch.arange(v.shape[1]).to(v)[:, None].sin()


def placed_in_blocks(v: Tensor) -> Tensor:
    return v + (torch.arange(v.shape[1]) % 8).to(v)[:, None] * torch.linspace(0, 1, DIM).to(v)


def shifted(v: Tensor) -> Tensor:
    """Of the token before, in half of the channels."""
    return torch.cat((pad(v, (0, 0, 1, 0))[:, :-1, : DIM // 2], v[..., DIM // 2 :]), dim=-1)


def with_sinks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A key of zeros before all others."""
    return by_hand(q, pad(k, (0, 0, 1, 0)), pad(v, (0, 0, 1, 0)))


FAULTY = {
    "split": lambda: Layer(lay=split_wrongly),
    "joined": lambda: Layer(back=join_wrongly),
    "joined, channels first": lambda: Layer(back=join_channels_first),
    "fused": lambda: Layer(back=join_wrongly, attend=causal),
    "fused, split": lambda: Layer(lay=split_wrongly, attend=scaled_dot_product_attention),
}

HEALTHY = {
    "attention": Layer,
    "fused": lambda: Layer(attend=causal),
    "one head of keys": lambda: Layer(attend=of_one_head),
    "positions in the values": lambda: Layer(change=placed),
    "positions in blocks": lambda: Layer(change=placed_in_blocks),
    "a shift": lambda: Layer(change=shifted),
    "sinks": lambda: Layer(attend=with_sinks),
    "rectified": lambda: Layer(change=lambda v: placed_in_blocks(v).relu()),
    "a layer of torch": lambda: nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True),
}


def examined(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(Layer(), make())

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=DIM, max_length=128)
    return run_check(registry.load("FWD234"), replace(made, packages=("tests",)))


@pytest.mark.parametrize("name", FAULTY)
def test_a_layout_that_tears_tokens_apart_is_found_at_its_line(name: str) -> None:
    (finding,) = examined(FAULTY[name]).findings
    assert finding.evidence["projection"] == "1.out"
    assert finding.where.module == "1"
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("name", HEALTHY)
def test_what_else_tells_equal_tokens_apart_is_no_finding(name: str) -> None:
    result = examined(HEALTHY[name])
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_split_and_a_join_that_are_wrong_alike_are_found_by_rows_of_scores() -> None:
    """Equal tokens come out equal: what the one tears apart, the other puts together."""

    def join_alike(y: Tensor) -> Tensor:
        return y.reshape(len(y), y.shape[2], -1)

    (finding,) = examined(lambda: Layer(lay=split_wrongly, back=join_alike)).findings
    assert "token 16 of what 1 is given has 0, 4, 0, 0 rows of scores in its 4 heads" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


def in_turn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every query reads the token that many places on."""
    return by_hand(q.roll(5, 2), k, v)


def test_rows_that_all_heads_move_alike_are_no_finding() -> None:
    assert examined(lambda: Layer(attend=in_turn)).findings == ()
