"""Lengths that a part of a module takes for those of padding are examined, though something else reads padding."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~real[:, None], torch.finfo(q.dtype).min)
        return x + scores.softmax(-1) @ v


class Model(nn.Module):
    """Normalised tokens, and attention among those that are real."""

    def __init__(self) -> None:
        super().__init__()
        self.mix: nn.Module = Attention()

    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        weight = real[..., None].to(x.dtype)
        return x - (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        real = torch.arange(x.shape[1]) < lengths[:, None]
        y: Tensor = self.mix(self.norm(x, real), real)
        return y


class MeanOfAll(Model):
    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)  # here


class LargestOfAll(Model):
    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        largest = x.abs().amax(1, keepdim=True)  # here
        return x / largest


class OfTheLastToken(Model):
    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        return x + x[:, -1:]  # here


class Packs(Model):
    """The part is a recurrence over packed rows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = Recurrence()

    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred * real[..., None]


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, real.sum(1), batch_first=True, enforce_sorted=False)
        y: Tensor = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return y


class ByMoments(Model):
    """The same mean by sums of shifted tokens."""

    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        kept = x.masked_fill(~real[..., None], 0.0)
        return x - (kept - x[:, :1] * real[..., None]).sum(1, keepdim=True) / real.sum(1)[:, None, None] - x[:, :1]


class PaddingLeftAsItIs(Model):
    """What stands behind a row is normalised too, and read by nothing."""

    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        own = super().norm(x, real)
        return own.where(real[..., None], x - x.mean(1, keepdim=True))


class OfAPrompt(Model):
    """Adds what the first tokens say to each of all tokens, which are all read: these are no lengths of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = Says()

    def norm(self, x: Tensor, real: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        real = torch.arange(x.shape[1]) < lengths[:, None]
        return self.norm(x, real) + self.mix(x, real)[:, None]


class Says(Attention):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        weight = real[..., None].to(x.dtype)
        return self.qkv(x * weight).sum(1)[:, :DIM]


def subject(make: Callable[[], nn.Module]) -> Subject:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), explore=True), seeded)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD226"), subject(make))


@pytest.mark.parametrize("kind", [MeanOfAll, LargestOfAll, OfTheLastToken])
def test_what_reads_padding_beside_a_part_that_does_not_is_found_at_its_line(kind: type[nn.Module]) -> None:
    (finding,) = examined(kind).findings
    assert "padding" in finding.message
    assert finding.where.file is not None
    assert finding.where.line is not None
    with open(finding.where.file, encoding="utf-8") as file:
        assert "# here" in file.read().splitlines()[finding.where.line - 1], finding.where


def test_padding_that_is_read_before_rows_are_packed_is_found() -> None:
    assert "padding is read" in examined(Packs).findings[0].message  # packed rows lie between the line and the answer


@pytest.mark.parametrize("kind", [Model, ByMoments, PaddingLeftAsItIs])
def test_what_leaves_padding_out_is_silent(kind: type[nn.Module]) -> None:
    assert subject(kind).offers("padded")
    assert not examined(kind).findings


def test_lengths_of_what_a_part_sums_up_are_left_alone() -> None:
    assert not subject(OfAPrompt).offers("padded")
