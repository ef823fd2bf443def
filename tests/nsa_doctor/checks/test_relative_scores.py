"""FWD218: scores that what is named after relative positions makes of where tokens stand, and healthy ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, HEADS, SPAN, LONGEST = 8, 2, 200, 128


class Attention(nn.Module):
    """Attention of two heads, to whose scores `added` adds others of the queries [B, H, S, D] or of none."""

    is_causal = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.make()

    def make(self) -> None:
        """What its scores need."""
        self.to_rel_k = nn.Linear(4, DIM)

    def added(self, q: Tensor) -> Tensor:
        """Scores to add."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / 2 + self.added(q)
        if self.is_causal:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        out: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return out

    def keys(self, distances: Tensor) -> Tensor:
        """[H, N, D] of smooth features of distances."""
        scaled = distances.to(self.qkv.weight) / 40
        features = torch.stack([scaled, scaled.square(), (-scaled.abs()).exp(), scaled / (1 + scaled.abs())], -1)
        found: Tensor = self.to_rel_k(features).unflatten(-1, (HEADS, -1)).transpose(0, 1)
        return found


def shifted(scores: Tensor, length: int) -> Tensor:
    """Of scores for distances [.., S, 2S - 1] those for keys [.., S, S]."""
    flat = scores.contiguous().flatten(-2)
    size, stride = (*flat.shape[:-1], length, length), (*flat.stride()[:-1], 2 * (length - 1), 1)
    return flat.as_strided(size, stride, length - 1)  # shift


class ForAnotherLength(Attention):
    """The shift of one length, of positions made for another."""

    def added(self, q: Tensor) -> Tensor:
        distances = torch.arange(1 - SPAN, SPAN, device=q.device)
        return shifted(q @ self.keys(distances).mT, q.shape[2])


class NotShifted(Attention):
    """The keys of distances as those of keys."""

    def added(self, q: Tensor) -> Tensor:
        return q @ self.keys(torch.arange(q.shape[2], device=q.device)).mT  # plain


class OfASum(Attention):
    """Where query and key stand, added."""

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        index = (place[:, None] + place).expand(*q.shape[:2], -1, -1)
        return (q @ self.keys(torch.arange(2 * q.shape[2], device=q.device)).mT).gather(-1, index)  # sum


class SkewedTwice(Attention):
    """The shift of a causal model, by two keys a query."""

    padding, is_causal = 2, True

    def added(self, q: Tensor) -> Tensor:
        rel = q @ self.keys(torch.arange(q.shape[2] - 1, -1, -1, device=q.device)).mT
        padded = pad(rel, (self.padding, 0)).flatten(-2)
        return padded[..., self.padding * q.shape[2] :].unflatten(-1, rel.shape[-2:])  # skew


class BiasOfAnotherLength(Attention):
    """A learnt bias of distances, read with the stride of another length."""

    def make(self) -> None:
        self.rel_bias = nn.Parameter(torch.randn(HEADS, 2 * SPAN * SPAN))

    def added(self, q: Tensor) -> Tensor:
        length = q.shape[2]
        return self.rel_bias.as_strided((HEADS, length, length), (2 * SPAN * SPAN, SPAN, 1))[None] * 1  # bias


class Shifted(Attention):
    """The shift of the length that comes."""

    def added(self, q: Tensor) -> Tensor:
        distances = torch.arange(1 - q.shape[2], q.shape[2], device=q.device)
        return shifted(q @ self.keys(distances).mT, q.shape[2])


class Skewed(SkewedTwice):
    """Later keys, which the shift makes wrong scores of, are hidden."""

    padding = 1


class Classed(Shifted):
    """The first token stands apart from all others."""

    def make(self) -> None:
        super().make()
        self.rel_from, self.rel_to = nn.Parameter(torch.randn(HEADS, 1, 1)), nn.Parameter(torch.randn(HEADS, 1, 1))

    def added(self, q: Tensor) -> Tensor:
        inner = super().added(q[:, :, 1:])
        columns = torch.cat((self.rel_to.expand(len(q), HEADS, inner.shape[2], 1), inner), -1)
        row = self.rel_from.expand(len(q), HEADS, 1, columns.shape[-1])
        return torch.cat((row, columns), 2)


class OfAGrid(Attention):
    """Rows and columns of an image eight wide, whose last row may be short."""

    wide = 8

    def make(self) -> None:
        self.rel_pos_h = nn.Parameter(torch.randn(HEADS, 2 * LONGEST))
        self.rel_pos_w = nn.Parameter(torch.randn(HEADS, 2 * LONGEST))

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        rows, columns = place // self.wide, place % self.wide
        down, right = rows[:, None] - rows + LONGEST, columns[:, None] - columns + LONGEST
        return self.rel_pos_h[:, down] + self.rel_pos_w[:, right]


class OfAWideGrid(OfAGrid):
    """Three rows of an image, or so."""

    wide = 20


class OfAFilm(OfAGrid):
    """Images of two by four, one after the other."""

    def make(self) -> None:
        super().make()
        self.rel_pos_t = nn.Parameter(torch.randn(HEADS, 2 * LONGEST))

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        times, rows, columns = place // 8, place // 4 % 2, place % 4
        along = [each[:, None] - each + LONGEST for each in (times, rows, columns)]
        return self.rel_pos_t[:, along[0]] + self.rel_pos_h[:, along[1]] + self.rel_pos_w[:, along[2]]


class OfATree(Attention):
    """How far up two leaves meet."""

    def make(self) -> None:
        self.rel_pos = nn.Parameter(torch.randn(HEADS, 16))

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        apart = place[:, None] ^ place
        return self.rel_pos[:, (apart.double() + 0.5).log2().ceil().long()]


class BesidePlaces(Shifted):
    """A bias of its own for each pair of places, beside distances."""

    def make(self) -> None:
        super().make()
        self.bias = nn.Parameter(torch.randn(HEADS, LONGEST, LONGEST))

    def added(self, q: Tensor) -> Tensor:
        return super().added(q) + self.bias[:, : q.shape[2], : q.shape[2]]


class WithoutTheName(ForAnotherLength):
    """What nothing calls relative may be meant to be of places."""

    def make(self) -> None:
        self.other = nn.Linear(4, DIM)

    def keys(self, distances: Tensor) -> Tensor:
        scaled = distances.to(self.qkv.weight)[:, None].expand(-1, 4) / 40
        found: Tensor = self.other(scaled).unflatten(-1, (HEADS, -1)).transpose(0, 1)
        return found


class Scaled(Shifted):
    """Later queries are sharper, and each has a score of its own for all keys."""

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(1, q.shape[2] + 1, device=q.device).to(q)[:, None]
        return super().added(q) * (2 + place.log() / 8) + place.sin()


class ScaledByLogarithms(Shifted):
    """By the logarithm of how many tokens there are up to each, which grows most at the first."""

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(2, q.shape[2] + 2, device=q.device).to(q)[:, None]
        return super().added(q) * place.log()


class ValuesOfDistances(Attention):
    """Distances add to values too, so that tokens differ in the layer that follows."""

    def make(self) -> None:
        super().make()
        self.rel_values = nn.Parameter(torch.randn(DIM, 2 * LONGEST))
        self.following = Shifted()

    def added(self, q: Tensor) -> Tensor:
        return q @ q.mT

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        place = torch.arange(x.shape[1], device=x.device)
        near = (place[:, None] - place).abs() < 30
        values = self.rel_values[:, place[:, None] - place + LONGEST].masked_fill(~near, 0.0).sum(-1)
        out: Tensor = self.following(x + values.T.tanh())
        return out


class OfPairs(Attention):
    """A table of pairs, made of distances and mixed, tells scores."""

    def make(self) -> None:
        self.relative = nn.Parameter(torch.randn(HEADS, 2 * LONGEST))

    def added(self, q: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        pairs = self.relative[:, place[:, None] - place + LONGEST]
        mixed: Tensor = (pairs @ pairs.mT).tanh()
        return mixed


def examined(kind: Callable[[], nn.Module], longest: int = LONGEST) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return kind()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="tests",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        max_length=longest,
        packages=("tests",),
    )
    return run_check(registry.load("FWD218"), subject)


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        (ForAnotherLength, "shift"),
        (NotShifted, "plain"),
        (OfASum, "sum"),
        (SkewedTwice, "skew"),
        (BiasOfAnotherLength, "bias"),
    ],
)
def test_relative_scores_of_places_are_found_at_the_line_that_makes_them(kind: type[Attention], mark: str) -> None:
    (finding,) = examined(kind).findings
    assert "scores between equal tokens depend on where they stand" in finding.message
    assert finding.where.file == __file__
    assert Path(__file__).read_text("utf-8").splitlines()[(finding.where.line or 0) - 1].endswith(f"# {mark}")


@pytest.mark.parametrize(
    "kind",
    [
        Shifted,
        Skewed,
        Classed,
        OfAGrid,
        OfAWideGrid,
        OfAFilm,
        OfATree,
        BesidePlaces,
        WithoutTheName,
        Scaled,
        ScaledByLogarithms,
        ValuesOfDistances,
        OfPairs,
    ],
)
def test_scores_of_distances_and_those_that_are_meant_otherwise_pass(kind: type[Attention]) -> None:
    result = examined(kind)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_of_short_sequences_nothing_is_said() -> None:
    assert examined(ForAnotherLength, 30).findings == ()
