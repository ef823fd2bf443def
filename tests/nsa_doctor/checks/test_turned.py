"""Retention and linear attention, where no softmax follows, turn queries and keys so that distance alone counts."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

HEADS, SIZE = 2, 16


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


class Retention(nn.Module):
    """Scores of all pairs, which a decay weighs."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[-2]).to(x)[:, None] * 100.0 ** -(torch.arange(SIZE // 2).to(x) / (SIZE // 2))

    def turn(self, x: Tensor) -> Tensor:
        cos, sin = (part.repeat(1, 2) for part in (self.angles(x).cos(), self.angles(x).sin()))
        return x * cos + halves(x) * sin  # turned

    def turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turn(q), self.turn(k)

    def given(self, x: Tensor) -> Tensor:
        return x

    def weigh(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        distance = torch.arange(q.shape[-2])[:, None] - torch.arange(q.shape[-2])
        scores = q @ (k / SIZE**0.5).mT  # product
        return scores * torch.where(distance >= 0, 0.9 ** distance.clamp_min(0), 0.0).to(q) @ v

    def forward(self, x: Tensor) -> Tensor:
        x = self.given(x)
        q, k, v = (part(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(self.weigh(*self.turned(q, k), v).transpose(1, 2).flatten(2))


class Linear(Retention):
    """A state of sums of keys times values, which queries read."""

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.elu(x) + 1

    def weigh(self, q, k, v):
        q, k = self.features(q), self.features(k)
        state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
        read = torch.einsum("bhnd,bhnde->bhne", q, state)
        return read / torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2))[..., None]


class Conjugated(Retention):
    def turned(self, q, k):
        a, b = self.turn(k).chunk(2, -1)
        return self.turn(q), torch.cat((a, -b), -1)


class KeysTwice(Retention):
    def turned(self, q, k):
        cos, sin = (part.repeat(1, 2) for part in ((2 * self.angles(k)).cos(), (2 * self.angles(k)).sin()))
        return self.turn(q), k * cos + halves(k) * sin


class TwoLayouts(Retention):
    """Queries are turned in halves, and keys in pairs."""

    def turned(self, q, k):
        cos, sin = (part.repeat_interleave(2, -1) for part in (self.angles(k).cos(), self.angles(k).sin()))
        return self.turn(q), k * cos + pairs(k) * sin


class TableOfPairs(Linear):
    """A table of pairs, sines and cosines by turns, is read as halves; tokens have positions of their own besides."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(128, HEADS * SIZE) / 4)

    def given(self, x):
        return x + self.positions[: x.shape[1]].to(x)

    def turn(self, x):
        angles = self.angles(x)
        table = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        sin, cos = (part.repeat_interleave(2, -1) for part in table.chunk(2, -1))
        return x * cos + pairs(x) * sin  # turned


FAULTY = [
    (Conjugated, "# product\n"),
    (KeysTwice, "# product\n"),
    (TwoLayouts, "# product\n"),
    (TableOfPairs, "# turned\n"),
]


class Pairs(Retention):
    def turn(self, x):
        cos, sin = (part.repeat_interleave(2, -1) for part in (self.angles(x).cos(), self.angles(x).sin()))
        return x * cos + pairs(x) * sin


class LinearPairs(Linear, Pairs):
    pass


class Complex(Retention):
    def turn(self, x):
        table = torch.polar(torch.ones_like(self.angles(x)), self.angles(x))
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * table).flatten(-2)


class LinearComplex(Linear, Complex):
    pass


class ByHalves(Retention):
    """Multiplies each half of queries and keys by itself: neither is turned without the other."""

    def turned(self, q, k):
        return q, k

    def both(self, x):
        (a, b), cos, sin = x.chunk(2, -1), self.angles(x).cos(), self.angles(x).sin()
        return a * cos - b * sin, a * sin + b * cos

    def weigh(self, q, k, v):
        (a, b), (c, d) = self.both(q), self.both(k)
        return (a @ c.mT + b @ d.mT).tril() @ v


class LinearByHalves(ByHalves):
    def weigh(self, q, k, v):
        return sum(a @ (b.mT @ v) for a, b in zip(self.both(q), self.both(k), strict=True)) / q.shape[-2]


class CosinesAlone(ByHalves):
    """Weighs the nearer more by cos(i - j), in two sums."""

    def both(self, x):
        angles = torch.arange(x.shape[-2]).to(x)[:, None] * torch.pi / 256
        return x.relu() * angles.cos(), x.relu() * angles.sin()


class CosinesJoined(Linear):
    def turn(self, x):
        angles = torch.arange(x.shape[-2]).to(x)[:, None] * torch.pi / 256
        return torch.cat((x.relu() * angles.cos(), x.relu() * angles.sin()), -1)


class ScaledByPosition(Retention):
    """xPos: queries grow by what keys shrink by."""

    def turned(self, q, k):
        grown = (0.3 + 0.7 * torch.arange(SIZE // 2).to(q) / SIZE).repeat(2) ** (
            torch.arange(q.shape[-2])[:, None] / 64
        )
        return self.turn(q) * grown, self.turn(k) / grown


class ScaledTable(ScaledByPosition):
    def turned(self, q, k):
        grown = (0.3 + 0.7 * torch.arange(SIZE // 2).to(q) / SIZE).repeat(2) ** (
            torch.arange(q.shape[-2])[:, None] / 64
        )
        cos, sin = (part.repeat(1, 2) for part in (self.angles(q).cos(), self.angles(q).sin()))
        return q * (cos * grown) + halves(q) * (sin * grown), k * (cos / grown) + halves(k) * (sin / grown)


class LinearScaledTable(Linear, ScaledTable):
    pass


class TurnedBack(Linear):
    """Values are turned too, and what is read is turned back."""

    def weigh(self, q, k, v):
        y = super().weigh(q, k, self.turn(v))
        cos, sin = (part.repeat(1, 2) for part in (self.angles(y).cos(), self.angles(y).sin()))
        return y * cos - halves(y) * sin


class NormalisedByUnturned(Linear):
    """Features are turned, and what they are divided by is not: it must not be negative."""

    def turned(self, q, k):
        return q, k

    def weigh(self, q, k, v):
        q, k = self.features(q), self.features(k)
        state = torch.einsum("bhnd,bhne->bhnde", self.turn(k), v).cumsum(2)
        read = torch.einsum("bhnd,bhnde->bhne", self.turn(q), state)
        return read / torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2))[..., None]


class Sigmoids(Retention):
    def weigh(self, q, k, v):
        return (q @ k.mT / SIZE**0.5 - 3).sigmoid().tril() @ v


class PartlyTurned(Retention):
    def turn(self, x):
        a, b = x.chunk(2, -1)
        angles = self.angles(x)[:, : SIZE // 4].repeat(1, 2)
        return torch.cat((a * angles.cos() + halves(a) * angles.sin(), b), -1)


class InPlace(Retention):
    def turn(self, x):
        angles = self.angles(x)[:, : SIZE // 4].repeat(1, 2)
        y = x.clone()
        y[..., : SIZE // 2] = x[..., : SIZE // 2] * angles.cos() + halves(x[..., : SIZE // 2]) * angles.sin()
        return y


class NormalisedAfter(Retention):
    def turned(self, q, k):
        return tuple(nn.functional.normalize(self.turn(each), dim=-1) for each in (q, k))


class TwoBases(Retention):
    """Adds what two rotations of different angles score."""

    def weigh(self, q, k, v):
        a, b = (self.turn_slower(each) for each in (q, k))
        return super().weigh(self.turn(q), self.turn(k), v) + super().weigh(a, b, v)

    def turn_slower(self, x):
        angles = (self.angles(x) / 8).repeat(1, 2)
        return x * angles.cos() + halves(x) * angles.sin()

    def turned(self, q, k):
        return q, k


class LinearTwoBases(Linear, TwoBases):
    """Of two rotations, each has a state of its own."""

    def weigh(self, q, k, v):
        slower = Linear.weigh(self, self.turn_slower(q), self.turn_slower(k), v)
        return slower + Linear.weigh(self, self.turn(q), self.turn(k), v)


class AddedSines(Linear):
    """Positions are added to each token."""

    def given(self, x):
        angles = torch.arange(x.shape[1]).to(x)[:, None] * 100.0 ** -(torch.arange(x.shape[-1] // 2).to(x) / 32)
        return x + torch.cat((angles.sin(), angles.cos()), -1)

    def turned(self, q, k):
        return q, k


class MultipliedBySines(AddedSines):
    def given(self, x):
        return x * super().given(torch.zeros_like(x))


class DecayAlone(Retention):
    def turned(self, q, k):
        return q, k


class LearnedPositions(Retention):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(128, SIZE) / 4)

    def turned(self, q, k):
        return q + self.positions[: q.shape[-2]].to(q), k * self.positions[: q.shape[-2]].to(q)


class HalfPrecisionTable(Retention):
    def angles(self, x):
        return super().angles(x)

    def turn(self, x):
        cos, sin = (part.repeat(1, 2).bfloat16().to(x) for part in (self.angles(x).cos(), self.angles(x).sin()))
        return x * cos + halves(x) * sin


class LinearHalfPrecisionTable(Linear, HalfPrecisionTable):
    pass


class Float32Table(Retention):
    def angles(self, x):
        return super().angles(x.float())

    def turn(self, x):
        return super().turn(x).to(x)


class ShortConvolution(Retention):
    """Each query and key is mixed with those of the tokens before it."""

    def turned(self, q, k):
        mixed = (each + 0.5 * nn.functional.pad(each, (0, 0, 2, 0))[..., :-2, :] for each in (q, k))
        return tuple(self.turn(each) for each in mixed)


class AnotherAngleInEachHead(Retention):
    def angles(self, x):
        return super().angles(x) * torch.tensor([1.0, 0.5]).to(x)[:, None, None]

    def turn(self, x):
        cos, sin = (part.repeat(1, 1, 2) for part in (self.angles(x).cos(), self.angles(x).sin()))
        return x * cos + halves(x) * sin


HEALTHY = [
    *(Retention, Linear, Pairs, LinearPairs, Complex, LinearComplex, ByHalves, LinearByHalves, CosinesAlone),
    *(CosinesJoined, ScaledByPosition, ScaledTable, LinearScaledTable, TurnedBack, NormalisedByUnturned, Sigmoids),
    *(PartlyTurned, InPlace, NormalisedAfter, TwoBases, LinearTwoBases, AddedSines, MultipliedBySines, DecayAlone),
    *(LearnedPositions, HalfPrecisionTable, LinearHalfPrecisionTable, Float32Table, ShortConvolution),
    AnotherAngleInEachHead,
]


def examined(make: type[nn.Module], seed: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="retention",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=HEADS * SIZE,
        max_length=128,
        seed=seed,
        packages=("tests",),
    )
    return run_check(registry.load("FWD218"), subject)


@pytest.mark.parametrize(("make", "line"), FAULTY, ids=[make.__name__ for make, _ in FAULTY])
def test_what_is_turned_wrongly_is_found_at_its_line(make: type[nn.Module], line: str) -> None:
    (finding,) = examined(make).findings
    assert "scores between equal tokens depend on where they stand: that of query" in finding.message
    assert finding.message.endswith("with the same query and key for all tokens")
    assert linecache.getline(finding.where.file, finding.where.line).endswith(line)


@pytest.mark.parametrize("make", HEALTHY)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_distance_alone_decides_is_silent(make: type[nn.Module], seed: int) -> None:
    result = examined(make, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
