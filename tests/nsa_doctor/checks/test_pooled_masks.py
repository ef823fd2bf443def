"""Masks of padding of modules that have one answer for a row, and of those that work off pieces of a sequence."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH, PIECE = 8, 96


class Pooled(nn.Module):
    """The mean of what a layer makes of each token, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def kept(self, keep: Tensor, start: int) -> Tensor:
        return keep[:, start : start + PIECE]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        total, count = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0, :1])
        for start in range(0, x.shape[1], PIECE):
            part = self.layer(x[:, start : start + PIECE]).tanh()
            kept = self.kept(keep, start)[:, : part.shape[1], None]
            total, count = total + (part * kept).sum(1), count + kept.sum(1)
        return total / count.clamp(min=1)


class OfTheFirstPiece(Pooled):
    def kept(self, keep: Tensor, start: int) -> Tensor:
        return keep[:, :PIECE]


class CountsPadding(Pooled):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        return (self.layer(x).tanh() * keep[..., None]).mean(1)


class OfARegion(Pooled):
    """Pools what the mask marks, each token beside the mean of all."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        y = self.layer(x + x.mean(1, keepdim=True)).tanh() * keep[..., None]
        return y.sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


class OfTheTokensBefore(Pooled):
    """Pools what a running mean makes of each token, which reads what stands before it and knows no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = RunningMean()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        y = self.layer(self.mix(x)).tanh() * keep[..., None]
        return y.sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


class RunningMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


def examined(kind: type[nn.Module]) -> Result:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    request = SubjectRequest(spec="tests:make", input="embeddings", width=WIDTH, explore=True, lengths=(64, 16))
    return run_check(registry.load("FWD226"), adapt(request, make))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OfTheFirstPiece, "with 110 of a row's 300 tokens masked as padding"),
        (CountsPadding, "with 10 of a row's 37 tokens masked as padding"),
    ],
)
def test_padding_that_a_pooled_answer_reads_is_found(kind: type[nn.Module], words: str) -> None:
    (finding,) = examined(kind).findings
    assert words in finding.message


def test_padding_that_a_pooled_answer_leaves_out_is_silent() -> None:
    assert examined(Pooled).verdict is Verdict.PASS


def test_padding_in_front_of_what_only_pools_by_its_mask_is_silent() -> None:
    assert examined(OfTheTokensBefore).verdict is Verdict.PASS


def test_a_mask_of_what_is_pooled_is_none_of_padding() -> None:
    assert "offers no way to mask padding" in examined(OfARegion).reason
