"""Rows' lengths that a forward takes are found to mask padding, in tokens or shares; others are left alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Means(nn.Module):
    """Each token with the mean of its row's own tokens; `reads` as many more as are told."""

    def __init__(self, reads: int = 0) -> None:
        super().__init__()
        self.mix, self.reads = nn.Linear(DIM, DIM), reads

    def of(self, x: Tensor, num_tokens: Tensor) -> Tensor:
        keep = torch.arange(x.shape[1], device=x.device) < num_tokens[:, None] + self.reads
        mean = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
        return self.mix(x) + mean[:, None]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.of(x, torch.full((len(x),), x.shape[1]) if lengths is None else lengths)


class OfShares(Means):
    def forward(self, x: Tensor, wav_lens: Tensor | None = None) -> Tensor:
        shares = torch.ones(len(x)) if wav_lens is None else wav_lens
        return self.of(x, (shares * x.shape[1]).round())


class Cuts(Means):
    """Its answer ends with the longest row, as packed sequences do."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        return self.of(x, lengths)[:, : int(lengths.max())], lengths


class Ignores(Means):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x)


class OfSomethingElse(Means):
    """A number of tokens to forecast."""

    def forward(self, x: Tensor, length: int | None = None) -> Tensor:
        return super().forward(x) if length is None else x[:, :length]


class HidesOnTheQueries(nn.Module):
    """Attention that hides queries in place of keys, and answers padding by zeros, or by what it says instead."""

    def __init__(self, axis: int = -1, keeps: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.axis, self.keeps = nn.Linear(DIM, 3 * DIM), axis, keeps

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / DIM**0.5
        if lengths is None:
            return scores.softmax(-1) @ v
        real = torch.arange(x.shape[1]) < lengths[:, None]
        scores = scores.masked_fill(~real.unsqueeze(self.axis), -1e9)
        return (scores.softmax(-1) @ v).where(real[..., None], torch.tensor(self.keeps).to(v))


def found(make: Callable[[], nn.Module]) -> Subject:
    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, declared=("bidirectional",)), make)


@pytest.mark.parametrize("reads", [0, 1])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Means, "forward(x, lengths=...), how many tokens each row has"),
        (OfShares, "forward(x, wav_lens=...), what share of its tokens each row has"),
        (Cuts, "forward(x, lengths=...), how many tokens each row has"),
    ],
)
def test_padding_by_lengths_is_examined(make: type[Means], words: str, reads: int) -> None:
    subject = found(lambda: make(reads))
    assert any(words in note for note in subject.notes), subject.notes
    findings = run_check(registry.load("FWD226"), subject).findings
    assert [finding.evidence["side"] for finding in findings] == ["right"] * reads


@pytest.mark.parametrize("make", [Ignores, OfSomethingElse])
def test_lengths_that_mask_nothing_are_left_alone(make: type[Means]) -> None:
    assert not found(make).offers("padded")


def test_rows_that_end_in_zeros_are_examined_though_padding_is_read() -> None:
    subject = found(HidesOnTheQueries)
    assert any("forward(x, lengths=...), how many tokens each row has" in note for note in subject.notes)
    assert len(run_check(registry.load("FWD226"), subject).findings) == 1
    mended = found(lambda: HidesOnTheQueries(1))
    assert mended.offers("padded")
    assert not run_check(registry.load("FWD226"), mended).findings


def test_what_answers_something_behind_the_end_and_reads_it_may_mean_other_lengths() -> None:
    assert not found(lambda: HidesOnTheQueries(keeps=1.0)).offers("padded")
