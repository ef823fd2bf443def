"""A row of padding that is not zero is found where it was written, if tokens read it; all other rows are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WORDS, WIDTH = 24, 8


class Bag(nn.Module):
    """The mean of all words, beside each; id 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids)
        return self.out((words + words.mean(1, keepdim=True)).tanh())


class Drawn(Bag):
    """Its weights are drawn again."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            nn.init.normal_(parameter)  # here


class Cleared(Drawn):
    """What is drawn again is cleared."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.words.weight[0] = 0


class Masked(Drawn):
    """No word reads padding."""

    def forward(self, ids: Tensor) -> Tensor:
        is_word = (ids != 0)[..., None]
        words = self.words(ids)
        mean = (words * is_word).sum(1, keepdim=True) / is_word.sum(1, keepdim=True).clamp(min=1)
        return self.out((words + mean).tanh())


class Forward(Drawn):
    """Words read what was before them."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).cumsum(1).tanh())


class Tied(Drawn):
    """The output has the same weight, which trains all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.out.weight = self.words.weight


class WithoutPadding(Bag):
    """Has no row of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)


def masked_mean(module: nn.Module, ids: Tensor, keep: Tensor) -> Tensor:
    words = module.words(ids) * keep[..., None]
    return module.out((words + words.sum(1, keepdim=True) / keep.sum(1)[:, None, None]).tanh())


def examined(make: Callable[[], nn.Module], **offered: object) -> Result:
    subject = small_subject(make, input="tokens", width=WORDS, max_length=80, **offered)
    return run_check(registry.load("FWD253"), subject)


def test_a_row_that_is_drawn_again_is_found_where_it_is() -> None:
    (finding,) = examined(Drawn).findings
    assert "row 0 of words, its padding_idx, is not zero and gets no gradient" in finding.message
    assert is_marked(finding.where.file, finding.where.line)
    assert finding.where.module == "words"


@pytest.mark.parametrize("make", [Bag, Cleared, Masked, Forward, Tied, WithoutPadding])
def test_a_row_of_zeros_that_no_word_reads_or_that_is_trained_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_row_that_a_mask_hides_is_silent_where_the_subject_takes_one() -> None:
    assert examined(Drawn, padded=masked_mean).verdict is Verdict.PASS


def mean_of_words(module: nn.Module, ids: Tensor, keep: Tensor) -> Tensor:
    """Padding adds nothing to the sum, as its row is zero."""
    words = module.words(ids.masked_fill(~keep, 0))
    return module.out((words + words.sum(1, keepdim=True) / keep.sum(1)[:, None, None]).tanh())


@pytest.mark.parametrize("make", [Bag, Cleared])
def test_a_row_of_zeros_stays_zero_where_other_weights_are_moved(make: Callable[[], nn.Module]) -> None:
    subject = small_subject(make, input="tokens", width=WORDS, max_length=80, padded=mean_of_words)
    assert run_check(registry.load("FWD226"), subject).findings == ()


def test_a_row_that_is_drawn_is_read_as_padding() -> None:
    subject = small_subject(Drawn, input="tokens", width=WORDS, max_length=80, padded=mean_of_words)
    assert run_check(registry.load("FWD226"), subject).findings
