"""Rows of weights that do no more than their sum are found at the line that adds them up; all others are silent."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, GROUPS, HEADS = 8, 2, 4
_TO = {"kept": "bghqk", "added": "bhqk"}


class Grouped(nn.Module):
    """Two query heads for each head of keys, of which the scores are kept, or added up before the softmax."""

    def __init__(self, scores: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, width) for width in (GROUPS * HEADS * 2, HEADS * 2, HEADS * 2))
        self.norm, self.table = nn.LayerNorm(DIM), nn.Embedding(32, DIM)
        self.out = nn.Linear(HEADS * 2 * (GROUPS if scores == "kept" else 1), DIM)
        self.scores = scores

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x) + self.table(torch.arange(x.shape[1], device=x.device))
        q = self.q(y).unflatten(-1, (GROUPS, HEADS, 2))
        k, v = (each(y).unflatten(-1, (HEADS, 2)) for each in (self.k, self.v))
        to = _TO[self.scores]
        weights = torch.einsum(f"bqghd,bkhd->{to}", q, k).softmax(-1)  # here
        answer = torch.einsum(f"{to},bkhd->bq{to[1:-2]}d", weights, v)
        return x + self.out(answer.flatten(2))


class Averaged(nn.Module):
    """Maps whose outputs are averaged as they are, or behind an activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.maps, self.activation = nn.Linear(DIM, 6), activation

    def forward(self, x: Tensor) -> Tensor:
        mapped = self.activation(self.maps(x))
        return x + mapped.mean(-1, keepdim=True)  # here


def examined(make: object, seed: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()  # type: ignore[operator]

    return run_check(
        registry.load("GRD219"),
        Subject(
            name="tests",
            build=build,
            forward=lambda module, x: module(x),
            input="embeddings",
            width=DIM,
            packages=("tests",),
            max_length=32,
            seed=seed,
        ),
    )


FAULTY = {
    "scores": (lambda: Grouped("added"), "the 16 rows of q.weight act through 8 sums"),
    "a mean": (lambda: Averaged(nn.Identity()), "the 6 rows of maps.weight act through 1 sum"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_rows_that_are_added_up_are_found(name: str) -> None:
    make, words = FAULTY[name]
    (finding,) = examined(make).findings
    assert finding.message.startswith(words)
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lambda: Grouped("kept"), lambda: Averaged(nn.GELU())])
def test_rows_that_each_do_something_are_silent(make: object, seed: int) -> None:
    result = examined(make, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class Streams(nn.Module):
    """Layers that mix streams, of which the first is given as many copies of one."""

    def __init__(self) -> None:
        super().__init__()
        self.mixes = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.maps = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        streams = x.unsqueeze(0).expand(4, -1, -1, -1)
        for mix, each in zip(self.mixes, self.maps, strict=True):
            streams = torch.einsum("sbnd,st->tbnd", streams, mix)
            streams = torch.cat((streams[:1] + each(streams[1:2]).tanh(), streams[1:]))
        return streams.sum(0)


def test_rows_that_are_added_up_in_the_first_of_several_layers_alone_are_a_note() -> None:
    result = examined(Streams)
    assert result.verdict is Verdict.PASS, result.findings
    (note,) = result.notes
    assert note.startswith("the 4 rows of mixes.0 act through 1 sum of them")
    assert "those of mixes.1 do not" in note
