"""Rows that lose all of their tokens in training are found where the mask is applied; other dropping is silent."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, WORDS = 8, 40


class Dropped(nn.Module):
    """What a subclass drops, and a recurrence behind it."""

    def __init__(self, share: float = 0.3) -> None:
        super().__init__()
        self.share = share
        self.rnn, self.out = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)
        self.mask_vector = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.dropped(x) if self.training else x)[0])

    def dropped(self, x: Tensor) -> Tensor:
        return x


class WordDropout(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        mask = x.data.new(x.size(0), 1, 1).bernoulli_(1 - self.share)
        return mask.expand_as(x) * x  # here


class TimeFirst(Dropped):
    """Draws for what is the second axis, of rows."""

    def dropped(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        x = x.masked_fill(torch.rand(1, x.shape[1], 1) < self.share, 0)  # here
        return x.transpose(0, 1)


class ByTwoAxes(Dropped):
    """A dropout of channels, given one of them."""

    def dropped(self, x: Tensor) -> Tensor:
        return functional.dropout2d(x[:, None], self.share)[:, 0]  # here


class InPlace(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[torch.rand(len(x)) < self.share] = 0  # here
        return x


class Elsewhere(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, 1) > self.share
        return torch.where(kept, self.out(x).tanh(), torch.zeros(()))  # here


class TokenDropout(Dropped):
    """Puts a vector in the place of tokens."""

    def dropped(self, x: Tensor) -> Tensor:
        lost = torch.rand(len(x), 1, 1) < self.share
        return torch.where(lost, self.mask_vector, x)  # here


class OfItsMean(Dropped):
    """All that a row is read by is its mean."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1)
        if self.training:
            mean = mean * (torch.rand(len(x), 1) > self.share)  # here
        return self.out(mean)[:, None].expand_as(x)


class AtEachStep(Dropped):
    """One after the other, by what is drawn before."""

    def dropped(self, x: Tensor) -> Tensor:
        kept = (torch.rand(len(x), 1) > self.share).to(x)
        return torch.stack([step * kept for step in x.unbind(1)], 1)  # here


class WordsOneByOne(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return torch.stack([step * (torch.rand(len(x), 1) > self.share) for step in x.unbind(1)], 1)


class EachWord(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * x.new_empty(*x.shape[:2], 1).bernoulli_(1 - self.share)


class AlongTheSequence(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * x.new_empty(len(x), 1, WIDTH).bernoulli_(1 - self.share)


class DropPath(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x + self.out(x) * (torch.rand(len(x), 1, 1) > self.share)


class AllOfAll(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 1.0)


class ManyDropped(Dropped):
    """Of few tokens so many that rows lose all of theirs by chance."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(*x.shape[:2], 1) > 0.9)


class NeverRead(Dropped):
    """Neither in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, 1) > self.share if self.training else 1
        return self.out((x * kept).abs().sign().clamp_min(1))


class ConditionDropout(Dropped):
    """For guidance without a classifier, what is said is left out for some."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) > self.share)


class WholeRows(Dropped):
    """Drops whole sentences."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) > self.share)


class OfAColdStart(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        # a cold start: nothing is known of some
        return x * (torch.rand(len(x), 1, 1) > self.share)


class OfAMemory(Dropped):
    """What else there is to be read is left out for some."""

    def dropped(self, x: Tensor) -> Tensor:
        memory = self.out(x)
        memory = memory * (torch.rand(len(x), 1, 1) > self.share)
        return memory.tanh()


class EncoderDropout(Dropped):
    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) > self.share)


class Replaced(Dropped):
    """An empty text in the place of some."""

    def dropped(self, x: Tensor) -> Tensor:
        return torch.where(torch.rand(len(x), 1, 1) < self.share, self.mask_vector, x)


class WithAGlobalPart(Dropped):
    """Something of the row goes around it."""

    def dropped(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) > self.share) + x.mean(1, keepdim=True)


class OfAnArgument(Dropped):
    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        given = x.flip(1) if extra is None else extra
        return super().forward(x) + given * ((torch.rand(len(x), 1, 1) > self.share) if self.training else 1)


class Experts(Dropped):
    """A row goes through one of two at random."""

    def dropped(self, x: Tensor) -> Tensor:
        first = torch.rand(len(x), 1, 1) > 0.5
        return self.out(x) * first + self.out(x).tanh() * ~first


class Branch(Dropped):
    """Its caller goes around it."""

    def drop_path(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) > self.share)

    def dropped(self, x: Tensor) -> Tensor:
        return self.drop_path(self.out(x))


def examined(make: Callable[[], nn.Module], **others: Any) -> Result:
    return run_check(registry.load("FWD279"), small_subject(make, **{"width": WIDTH, "max_length": 64, **others}))


FAULTY = (WordDropout, TimeFirst, ByTwoAxes, InPlace, Elsewhere, TokenDropout, OfItsMean, AtEachStep)
HEALTHY = (
    *(
        WordsOneByOne,
        EachWord,
        AlongTheSequence,
        DropPath,
        AllOfAll,
        ManyDropped,
        NeverRead,
        ConditionDropout,
        WholeRows,
        Replaced,
    ),
    *(WithAGlobalPart, OfAnArgument, Experts, OfAColdStart, OfAMemory, EncoderDropout),
)


@pytest.mark.parametrize(
    ("make", "share"), [*((make, 0.3) for make in FAULTY), *((WordDropout, share) for share in (0.05, 0.1, 0.9))]
)
def test_lost_rows_are_found(make: Callable[[float], Dropped], share: float) -> None:
    (finding,) = examined(lambda: make(share)).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
    assert finding.where.function in ("dropped", "forward", "<listcomp>")
    assert "rows lose all their tokens in training" in finding.message


@pytest.mark.parametrize("make", HEALTHY)
def test_what_leaves_something_of_a_row_is_silent(make: type[Dropped]) -> None:
    result = examined(make)
    assert (result.findings, result.notes) == ((), ())


def test_a_branch_is_a_note() -> None:
    result = examined(Branch)
    assert (result.findings, len(result.notes)) == ((), 1)


class OfIds(nn.Module):
    """Ids of tokens, of which some become that of an unknown word."""

    def __init__(self, by_token: bool) -> None:
        super().__init__()
        self.by_token = by_token
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.rnn, self.out = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WORDS)

    def word_dropout(self, ids: Tensor) -> Tensor:
        shape = ids.shape if self.by_token else (len(ids), 1)
        return ids.masked_fill(torch.rand(shape) < 0.2, 3)  # here

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.embedding(self.word_dropout(ids) if self.training else ids))[0])


def test_ids_of_a_row_that_become_one_are_found() -> None:
    (finding,) = examined(lambda: OfIds(by_token=False), input="tokens", width=WORDS).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


def test_ids_that_become_another_one_by_one_are_silent() -> None:
    assert examined(lambda: OfIds(by_token=True), input="tokens", width=WORDS).findings == ()


@pytest.mark.parametrize("others", [{"modes": ("eval",)}, {"modes": ("train",)}], ids=["eval", "train"])
def test_of_one_mode_alone_it_is_not_asked(others: dict[str, Any]) -> None:
    assert examined(WordDropout, **others).verdict is Verdict.SKIP


def test_where_nothing_is_dropped_it_is_not_asked() -> None:
    assert examined(Dropped).verdict is Verdict.SKIP
