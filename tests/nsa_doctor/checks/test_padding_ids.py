"""Subjects that hide an id as padding by themselves: what else reads it is found, and what compares ids for another end
is left alone.
"""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, PAD, MASK = 8, 0, 1


class Encoder(nn.Module):
    """Embeds ids, mixes neighbours, attends; `kind` says what heeds padding, and how it is hidden."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.conv = nn.Embedding(32, DIM), nn.Conv1d(DIM, DIM, 5, padding=2)
        self.qkv, self.out, self.kind = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 32), kind
        self.register_buffer("pad", torch.tensor(PAD))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        keep = ids != (self.pad if "tensor" in self.kind else PAD)
        heeded = x * keep[..., None] if "heeds" in self.kind else x
        x = x + self.conv(heeded.mT).mT  # here
        if "marks" in self.kind:
            x = x + (ids == MASK)[..., None]
        q, k, v = self.qkv(x).chunk(3, -1)
        if "fused" in self.kind:
            x = x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], keep[:, None, None])[:, 0]
        else:
            scores = q @ k.mT
            if "unhidden" not in self.kind:
                scores = scores.masked_fill(~keep[:, None], -torch.inf)
            x = x + scores.softmax(-1) @ v
        return self.out(x)


class OfTorch(nn.Module):
    """Torch's own layers, whose padding a convolution before them reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv = nn.Embedding(32, DIM), nn.Conv1d(DIM, DIM, 5, padding=2)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(DIM, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.conv(x.mT).mT  # here
        return self.out(self.layers(x, src_key_padding_mask=ids == PAD))


class Flagged(nn.Module):
    """Marks one id, and hides something else: what it fills up, a rest of the vocabulary, all but the first tokens."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.embed, self.qkv, self.what = nn.Embedding(32, DIM), nn.Linear(DIM, 3 * DIM), what
        self.out, self.flag = nn.Linear(DIM, 64), nn.Parameter(torch.randn(DIM))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + (ids == MASK)[..., None] * self.flag
        length = x.shape[1]
        x = F.pad(x, (0, 0, 0, -length % 16)) if self.what == "blocks" else x
        q, k, v = self.qkv(x).chunk(3, -1)
        last = {"blocks": length, "first": 8}.get(self.what, length)
        hidden = torch.arange(x.shape[1], device=x.device) >= last
        x = (x + (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v)[:, :length]
        logits = self.out(x)
        if self.what == "vocabulary":
            return logits.masked_fill(torch.arange(64, device=x.device) >= 50, -torch.inf).softmax(-1)
        return logits


class LastWord(nn.Module):
    """For every token the last word of its row; `last` says which that is."""

    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.out, self.last = nn.Embedding(32, DIM), nn.Linear(DIM, 32), last

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embed(ids).tanh()
        last = self.last(ids)[:, None, None].expand(-1, 1, DIM)
        return self.out(words.gather(1, last)).expand(-1, ids.shape[1], -1)  # here


def before_the_first_padding(ids: Tensor) -> Tensor:
    least, first = (ids != PAD).long().min(1)
    return (torch.where(least == 0, first, ids.shape[1]) - 1).clamp(min=0)


def last_that_is_none(ids: Tensor) -> Tensor:
    return ids.shape[1] - 1 - (ids != PAD).flip(1).long().argmax(1)


def first_end(ids: Tensor) -> Tensor:
    return (ids == MASK).long().argmax(1)


def examined(kind: str | Callable[[], nn.Module]) -> Result:
    make = kind if callable(kind) else lambda: Encoder(kind)
    subject = small_subject(make, input="tokens", width=32, max_length=80, spec=("bidirectional",))
    return run_check(registry.load("FWD252"), subject)


@pytest.mark.parametrize("kind", ["", "fused", "tensor", "marks", OfTorch])
def test_what_reads_an_id_that_attention_hides_is_found(kind: str | Callable[[], nn.Module]) -> None:
    (finding,) = examined(kind).findings
    assert "with 10 tokens of id 0 behind them, which is hidden as padding at test_padding_ids.py:" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


@pytest.mark.parametrize("kind", ["heeds", "heeds fused", "heeds tensor marks", "unhidden", "unhidden marks"])
def test_padding_that_nothing_reads_and_ids_that_nothing_hides_are_silent(kind: str) -> None:
    result = examined(kind)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("what", ["blocks", "vocabulary", "first"])
def test_an_id_beside_what_is_hidden_for_another_end_is_none_of_padding(what: str) -> None:
    result = examined(lambda: Flagged(what))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_row_behind_padding_that_is_not_read_is_found_where_its_answer_is_taken() -> None:
    (finding,) = examined(lambda: LastWord(before_the_first_padding)).findings
    assert "a row behind 10 tokens of id 0 gets the same answer whatever it holds" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


@pytest.mark.parametrize("last", [last_that_is_none, first_end])
def test_the_last_word_and_that_before_an_end_are_silent(last: Callable[[Tensor], Tensor]) -> None:
    result = examined(lambda: LastWord(last))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
