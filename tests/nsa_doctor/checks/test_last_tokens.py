"""Answers for a row that leave its last tokens out are found; fields that are short on purpose are silent."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Pooled(nn.Module):
    """A sum over blocks of a layer's values, whole ones alone or all of them."""

    def __init__(self, block: int = 32, is_whole: bool = True) -> None:
        super().__init__()
        self.layer, self.block, self.is_whole = nn.Linear(WIDTH, WIDTH), block, is_whole

    def pooled(self, x: Tensor) -> Tensor:
        total = self.layer(x[:, : self.block]).tanh().sum(1)
        last = x.shape[1] - self.block + 1 if self.is_whole else x.shape[1]
        for start in range(self.block, last, self.block):
            total = total + self.layer(x[:, start : start + self.block]).tanh().sum(1)
        return total

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(x)[:, None].expand_as(x)


class First(Pooled):
    """Reads a window at the beginning, as a first token does whose attention is local."""

    def pooled(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :40]).tanh().sum(1)


class Last(Pooled):
    """Reads a window at the end."""

    def pooled(self, x: Tensor) -> Tensor:
        return self.layer(x[:, -40:]).tanh().sum(1)


class Strided(Pooled):
    """Patches of 16 tokens, of which some are left over."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv1d(WIDTH, WIDTH, 16, 16)

    def pooled(self, x: Tensor) -> Tensor:
        filled = nn.functional.pad(x.mT, (0, max(0, 16 - x.shape[1])))
        return self.patches(filled).tanh().sum(-1)


def examined(make: Callable[[], nn.Module], **others: object) -> Result:
    given = {"answer": ("", (WIDTH,)), "spec": ("bidirectional",), "max_length": 1100, **others}
    return run_check(registry.load("FWD256"), small_subject(make, width=WIDTH, **given))


@pytest.mark.parametrize(("block", "length"), [(16, 31), (32, 127), (96, 127), (128, 255)])
def test_last_tokens_that_are_left_out_are_found(block: int, length: int) -> None:
    (finding,) = examined(lambda: Pooled(block)).findings
    most = length % block
    assert f"the answer for {length} tokens is the same whatever the last {most} are" in finding.message
    assert finding.where.file == __file__
    assert finding.where.function == "pooled"


@pytest.mark.parametrize(
    "make",
    [lambda: Pooled(32, is_whole=False), First, Last, Strided],
    ids=["to the end", "the beginning", "the end", "patches"],
)
def test_what_is_read_to_the_end_or_is_no_block_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_an_answer_for_each_token_is_not_asked() -> None:
    assert "an answer for each token" in examined(Pooled, answer=None).reason
