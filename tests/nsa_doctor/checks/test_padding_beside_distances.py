"""Padding that is counted is found where it is, though there are codes of distances, of which longer rows have more."""

import linecache
import math

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, MOST = 16, 512


class Distances(nn.Module):
    """Codes of the distances from T - 1 down to 1 - T."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(2 * MOST - 1, DIM))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        length = x.shape[1]
        return x * math.sqrt(DIM), self.codes[MOST - length : MOST + length - 1].to(x)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.p = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, codes: Tensor, hidden: Tensor | None) -> Tensor:
        q, scores = self.q(x), self.q(x) @ self.k(x).mT
        length = x.shape[1]
        index = torch.arange(length)[None] - torch.arange(length)[:, None] + length - 1
        scores = scores + (q @ self.p(codes).mT).gather(-1, index.expand(len(x), -1, -1))
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None], torch.finfo(scores.dtype).min)
        return (scores / math.sqrt(DIM)).softmax(-1) @ self.v(x)


class Block(nn.Module):
    """Attention, and a convolution before which padding is made zero."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.attention = Distances(), Attends()
        self.wide, self.near = nn.Conv1d(DIM, DIM, 1), nn.Conv1d(DIM, DIM, 3, padding=1)
        self.norm = nn.GroupNorm(1, DIM)

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        x, codes = self.positions(x)
        x = x + self.attention(x, codes, pad_mask)
        return x + self.convolved(x, pad_mask)

    def convolved(self, x: Tensor, pad_mask: Tensor | None) -> Tensor:
        y = self.wide(x.mT).mT
        return self.near((y if pad_mask is None else y.masked_fill(pad_mask[..., None], 0.0)).mT).mT


class NormsOverTokens(Block):
    def convolved(self, x: Tensor, pad_mask: Tensor | None) -> Tensor:
        y = super().convolved(x, pad_mask)
        y = y if pad_mask is None else y.masked_fill(pad_mask[..., None], 0.0)
        return self.norm(y.mT).mT  # here


class ZeroesTooEarly(Block):
    def convolved(self, x: Tensor, pad_mask: Tensor | None) -> Tensor:
        y = x if pad_mask is None else x.masked_fill(pad_mask[..., None], 0.0)
        y = self.wide(y.mT)  # of zeros it makes its bias
        return self.near(y).mT  # here


def examined(kind: type[nn.Module]) -> Result:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    subject = adapt(SubjectRequest(spec="tests:module", input="embeddings", width=DIM), make)
    return run_check(registry.load("FWD226"), subject)


def test_nothing_is_found_where_padding_is_left_out() -> None:
    result = examined(Block)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("kind", [NormsOverTokens, ZeroesTooEarly])
def test_padding_that_is_counted_is_found_where_it_is(kind: type[nn.Module]) -> None:
    (finding,) = examined(kind).findings
    assert "other than those of the row alone" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
