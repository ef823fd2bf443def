"""What attention gets wrong is seen in its scores, without an adapter; odd but healthy kinds are left alone."""

import linecache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

CODES = ("FWD216", "FWD217", "FWD218", "FWD219")
HEADS, SIZE, GROUPS, BLOCK = 4, 8, 2, 8


class Plain(nn.Module):
    """Causal attention with grouped keys and rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.q, self.k, self.v = (nn.Linear(width, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS))
        self.out = nn.Linear(width, width)

    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]).to(x)[:, None, None] * 10.0 ** -torch.arange(SIZE // 2).to(x)

    def turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.angles(x).cos(), self.angles(x).sin()
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turn(q), self.turn(k)

    def seen(self, t: Tensor) -> Tensor:
        return t[:, None] >= t

    def biased(self, scores: Tensor) -> Tensor:
        return scores

    def given(self, x: Tensor) -> Tensor:
        return x

    def repeated(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k.repeat_interleave(HEADS // GROUPS, 2), v.repeat_interleave(HEADS // GROUPS, 2)

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, -1e9).softmax(-1)  # softmax

    def joined(self, y: Tensor) -> Tensor:
        return y.flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.given(x)
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)) for part in (self.q, self.k, self.v))
        q, k = self.turned(q, k)
        k, v = self.repeated(k, v)
        scores = self.biased(torch.einsum("bthd,bshd->bhts", q, k) / SIZE**0.5)
        weights = self.weigh(scores, self.seen(torch.arange(x.shape[1])))
        return self.out(self.joined(torch.einsum("bhts,bshd->bthd", weights, v)))


class WithoutTheFirstOfABlock(Plain):
    def seen(self, t):
        return super().seen(t) & ((t[:, None] != t) | (t % BLOCK > 0) | (t == 0))


class WithoutOneDistance(Plain):
    """As where a window ends one token before what is seen beyond it begins."""

    def seen(self, t):
        return super().seen(t) & (t[:, None] - t != 48)


class EarlierBlocksAlone(Plain):
    def seen(self, t):
        return t[:, None] // BLOCK > t // BLOCK


class QueriesAlone(Plain):
    def turned(self, q, k):
        return self.turn(q), k


class QueriesTwice(Plain):
    def turned(self, q, k):
        return self.turn(self.turn(q)), self.turn(k)


class AnewInEachBlock(Plain):
    def angles(self, x):
        return (torch.arange(x.shape[1]) % BLOCK).to(x)[:, None, None] * 10.0 ** -torch.arange(SIZE // 2).to(x)


class OneHeadOfKeysRaw(Plain):
    def turned(self, q, k):
        return self.turn(q), torch.cat((k[:, :, :1], self.turn(k)[:, :, 1:]), 2)


class DriftingScale(Plain):
    """As where the scale of halves is laid beside pairs: 0.2 % of the scores from the first row to the last."""

    def turned(self, q, k):
        grown = 1.001 ** torch.arange(q.shape[1]).to(q)[:, None, None]
        odd = torch.arange(SIZE) % 2 == 1
        q, k = self.turn(q), self.turn(k)
        return torch.where(odd, q * grown, q), torch.where(odd, k / grown**1.02, k)


class OffFarAlone(Plain):
    """One angle is off by a hundredth from token 100 on."""

    def angles(self, x):
        return super().angles(x) + 0.01 * (torch.arange(x.shape[1]) >= 100).to(x)[:, None, None]

    def turned(self, q, k):
        return self.turn(q), super().turn(k) if k.shape[1] < 100 else self.unmoved(k)

    def unmoved(self, k):
        angles = super().angles(k)
        a, b = k.chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class ValuesOfOtherGroups(Plain):
    def repeated(self, k, v):
        return super().repeated(k, v)[0], v.repeat(1, 1, HEADS // GROUPS, 1)


class JoinedInAnotherOrder(Plain):
    def joined(self, y):
        return y.unflatten(2, (GROUPS, -1)).transpose(2, 3).flatten(2)


class OneGroupForAll(Plain):
    def repeated(self, k, v):
        return k[:, :, :1].repeat(1, 1, HEADS, 1), v[:, :, :1].repeat(1, 1, HEADS, 1)


FAULTY = [
    (WithoutTheFirstOfABlock, "FWD216", "tokens 8, 16, 24, 32, 40 and 10 more up to 120 give no weight to themselves"),
    (WithoutOneDistance, "FWD216", "no token sees the one 48 before it, and every nearer and farther one, at S=128"),
    (EarlierBlocksAlone, "FWD217", "rows of a softmax over 61 keys have every key masked"),
    (QueriesAlone, "FWD218", "every key has the same"),
    (QueriesTwice, "FWD218", "scores between equal tokens depend on where they stand: that of query"),
    (AnewInEachBlock, "FWD218", "scores between equal tokens depend on where they stand: that of query"),
    (OneHeadOfKeysRaw, "FWD218", "every key has the same"),
    (DriftingScale, "FWD218", "scores between equal tokens depend on where they stand: that of query"),
    (OffFarAlone, "FWD218", "at S=128 with one token everywhere"),
    (ValuesOfOtherGroups, "FWD219", "head 0 of k serves heads [0, 1], and that of v heads [0, 2]"),
    (JoinedInAnotherOrder, "FWD219", "heads of q in order come out as heads 0, 2, 1, 3"),
    (OneGroupForAll, "FWD219", "nothing depends on head 1 of k, of 2"),
]


TURNED_AT = {  # where queries and keys are turned, or are made and one of them is not
    QueriesAlone: "for part in (self.q, self.k, self.v)",
    QueriesTwice: "self.turn(self.turn(q))",
    AnewInEachBlock: "a * cos - b * sin",
    OneHeadOfKeysRaw: "a * cos - b * sin",
    DriftingScale: "a * cos - b * sin",
    OffFarAlone: "a * angles.cos() - b * angles.sin()",
}


class Alibi(Plain):
    """Biases by the key's position, as some models have them: the query's makes no difference to a softmax."""

    def turned(self, q, k):
        return q, k

    def biased(self, scores):
        return scores + 0.5 ** torch.arange(1, HEADS + 1)[:, None, None] * torch.arange(scores.shape[-1])


class LearnedPositions(QueriesAlone):
    """Adds a position to each token; what is rotated besides does not have to be relative."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(128, HEADS * SIZE) / 4)

    def given(self, x):
        return x + self.positions[: x.shape[1]].to(x)


class NoPositions(Plain):
    def turned(self, q, k):
        return q, k


class GrowingTemperature(Plain):
    """Scores grow with the logarithm of how many keys there are."""

    def biased(self, scores):
        return scores * torch.arange(2, scores.shape[-1] + 2).log()[:, None].to(scores)


class Bidirectional(Plain):
    def seen(self, t):
        return torch.ones(len(t), len(t), dtype=torch.bool)


class HalfPrecisionTable(Plain):
    def turn(self, x):
        a, b = x.chunk(2, -1)
        cos, sin = (part.bfloat16().to(x) for part in (self.angles(x).cos(), self.angles(x).sin()))
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class FinishedTable(Plain):
    """A table that is made once, and kept in a dtype, perhaps times what a longer context is scaled by."""

    dtype, scale = torch.float32, 1.0

    def __init__(self) -> None:
        super().__init__()
        angles = self.angles(torch.zeros(1, 128, 1)).double()
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table.to(self.dtype) * self.scale)

    def turn(self, x):
        a, b = x.chunk(2, -1)
        cos, sin = (table[: x.shape[1]].to(x) for table in (self.cos, self.sin))
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class BFloat16Table(FinishedTable):
    dtype = torch.bfloat16


class Float16Table(FinishedTable):
    dtype = torch.float16


class ScaledTable(FinishedTable):
    def __init__(self) -> None:
        super().__init__()
        for name, table in list(self.named_buffers()):
            self.register_buffer(name, table.bfloat16().float() * 1.0693147)


class Float32Angles(Plain):
    def angles(self, x):
        return super().angles(x).float()


class ScaledKeys(Plain):
    """Nearer keys count more: queries grow by what keys shrink by."""

    def turned(self, q, k):
        grown = 1.01 ** torch.arange(q.shape[1]).to(q)[:, None, None]
        return self.turn(q) * grown, self.turn(k) / grown


class SinksAndWindow(Plain):
    def seen(self, t):
        return super().seen(t) & ((t[:, None] - t < 9) | (t < 2))


class Dilated(Plain):
    def seen(self, t):
        return super().seen(t) & ((t[:, None] - t) % 3 == 0)


class SummariesAlone(Plain):
    """Most tokens are keys, and the first two of each block are for nobody."""

    def seen(self, t):
        return super().seen(t) & ((t % BLOCK >= 2) | (t == 0))


class StrictlyEarlier(Plain):
    def seen(self, t):
        return (t[:, None] > t) | ((t[:, None] == 0) & (t == 0))


class BestKeys(Plain):
    def weigh(self, scores, seen):
        scores = scores.masked_fill(~seen, -1e9)
        least = scores.topk(min(5, scores.shape[-1]), -1).values[..., -1:]
        return super().weigh(scores, seen & (scores >= least))


class ZeroWhereNothingIsSeen(EarlierBlocksAlone):
    def weigh(self, scores, seen):
        return super().weigh(scores, seen) * seen.any(-1, keepdim=True)


class ChunksWithTheirOwnPositions(AnewInEachBlock):
    def seen(self, t):
        return super().seen(t) & (t[:, None] // BLOCK == t // BLOCK)


class TiledGroups(Plain):
    def repeated(self, k, v):
        return k.repeat(1, 1, HEADS // GROUPS, 1), v.repeat(1, 1, HEADS // GROUPS, 1)


class ChannelsFirst(Plain):
    def joined(self, y):
        return y.transpose(2, 3).flatten(2)


class Fused(Plain):
    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)) for part in (self.q, self.k, self.v))
        q, k = self.turned(q, k)
        q, k, v = (part.transpose(1, 2) for part in (q, *self.repeated(k, v)))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


HEALTHY = [
    *(Plain, Alibi, LearnedPositions, NoPositions, GrowingTemperature, Bidirectional, HalfPrecisionTable),
    *(FinishedTable, BFloat16Table, Float16Table, ScaledTable, Float32Angles, ScaledKeys),
    *(SinksAndWindow, Dilated, SummariesAlone, StrictlyEarlier, BestKeys, ZeroWhereNothingIsSeen),
    *(ChunksWithTheirOwnPositions, TiledGroups, ChannelsFirst, Fused),
]


def examined(make: type[nn.Module], code: str, seed: int = 0, geometry: Any = None) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="attention",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=HEADS * SIZE,
        max_length=128,
        seed=seed,
        geometry=geometry,
        packages=("tests",),
    )
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(("make", "code", "said"), FAULTY, ids=[make.__name__ for make, *_ in FAULTY])
def test_a_fault_of_attention_is_found_in_its_line(make: type[nn.Module], code: str, said: str) -> None:
    (finding,) = examined(make, code).findings
    assert said in finding.message
    assert TURNED_AT.get(make, "# softmax") in linecache.getline(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", HEALTHY)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("seed", [0, 1])
def test_odd_attention_is_silent(make: type[nn.Module], code: str, seed: int) -> None:
    result = examined(make, code, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_block_that_drops_its_own_tokens_is_a_finding_where_geometry_says_so() -> None:
    alone = examined(ZeroWhereNothingIsSeen, "FWD216")
    assert (alone.verdict, len(alone.notes)) == (Verdict.PASS, 1)
    assert f"no token sees itself or its own block of {BLOCK} tokens" in alone.notes[0]
    rules = {"l": 4, "d": 2, "n_sel": 2, "w": 4}
    (finding,) = examined(ZeroWhereNothingIsSeen, "FWD216", geometry=SimpleNamespace(l_sel=BLOCK, **rules)).findings
    assert "no token sees itself" in finding.message
    assert not examined(ZeroWhereNothingIsSeen, "FWD216", geometry=SimpleNamespace(l_sel=16, **rules)).findings
