"""Sequences that are decoded by turns keep apart, or the line that mixes them is named."""

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked


class Sums(nn.Module):
    """Sums of what came so far; the cache is the sum."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def past(self, x, cache):
        return cache["sum"] if "sum" in cache else x.new_zeros(x.shape[0], 1, 8)

    def forward(self, x, cache=None):
        cache = {} if cache is None else cache
        y = torch.tanh(self.linear(x)).cumsum(1) + self.past(x, cache)
        cache["sum"] = y[:, -1:]
        return y


class OfTheRowsBefore(Sums):
    rows = None

    def past(self, x, cache):
        is_other = "sum" in cache and self.rows not in (None, x.shape[0])
        self.rows = x.shape[0]
        return super().past(x, cache) * (1.5 if is_other else 1.0)


class OfTheFirstRows(Sums):
    """Goes wrong for sequences of another number of rows than the first had: the first itself is right."""

    rows = None

    def past(self, x, cache):
        self.rows = self.rows or x.shape[0]
        return super().past(x, cache) * (1.5 if "sum" in cache and self.rows != x.shape[0] else 1.0)


class OfTheLastCache(Sums):
    last = None

    def past(self, x, cache):
        is_other = "sum" in cache and self.last is not cache
        self.last = cache
        return super().past(x, cache) * (1.5 if is_other else 1.0)


class CutAfterOthers(OfTheLastCache):
    """Answers for no token where another sequence had the step before."""

    def forward(self, x, cache=None):
        is_other = cache is not None and "sum" in cache and self.last is not cache
        y = super().forward(x, cache)
        return y[:, :0] if is_other else y


class OneCacheForAsManyRows(Sums):
    """Hands a sequence the cache of an earlier one of as many rows, emptied."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x, cache=None):
        if cache is not None and "sum" not in cache and "own" not in cache:
            cache["own"] = self.kept.setdefault(x.shape[0], {})
            cache["own"].clear()
        return super().forward(x, cache if cache is None else cache["own"])


class Rotated(Sums):
    """Turns what comes by its positions, with a table that a longer sequence makes longer."""

    def __init__(self):
        super().__init__()
        self.table = torch.zeros(0, 8)

    def grown(self, offset, length):
        if len(self.table) < offset + length:
            self.table = self.made(0, offset + length)
        return self.table[offset : offset + length]

    def made(self, first, end):
        return (torch.arange(first, end)[:, None] * 10.0 ** -torch.arange(8)).cos()

    def forward(self, x, cache=None):
        cache = {} if cache is None else cache
        offset = cache.get("offset", 0)
        cache["offset"] = offset + x.shape[1]
        return super().forward(x * self.grown(offset, x.shape[1]).to(x), cache)


class KeepsTheLastChunk(Rotated):
    """Writes the table of a chunk where that of a sequence begins: only a chunk longer than one's position shows it."""

    def grown(self, offset, length):
        if len(self.table) < offset + length:
            self.table = self.made(offset, offset + length)
            return self.table
        return self.table[offset : offset + length]


class ShortenedByOthers(Rotated):
    """A table for the last prompt, read beyond its end by whoever is farther on, at its last row."""

    def grown(self, offset, length):
        if offset == 0:
            self.table = self.made(0, max(length, 32))
        return self.table[torch.arange(offset, offset + length).clamp(max=len(self.table) - 1)]


class CountsAllSteps(Sums):
    """Keeps a number of its own, which changes nothing."""

    steps = 0

    def past(self, x, cache):
        self.steps += 1
        return super().past(x, cache)


class RefusesChunksAndCounts(CountsAllSteps):
    """A step takes one token alone, and what refuses is no fault."""

    def past(self, x, cache):
        assert "sum" not in cache or x.shape[1] == 1, "one token at a time"
        return super().past(x, cache)


class OneAtATime(Sums):
    most = 1

    def past(self, x, cache):
        if "sum" in cache and x.shape[1] > self.most:
            raise ValueError(f"a step takes {self.most} tokens, got {x.shape[1]}")
        return super().past(x, cache)


class TwoAtATime(OneAtATime):
    most = 2


def examined(make, seed: int = 0, code: str = "DEC110") -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    def prefill(module, x):
        cache = {}
        return module(x, cache), cache

    subject = Subject(
        name="sums",
        build=build,
        forward=lambda module, x: module(x),
        prefill=prefill,
        step=lambda module, x, cache: (module(x, cache), cache),
        input="embeddings",
        width=8,
        max_length=64,
        seed=seed,
        packages=("tests",),
    )
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(
    "make",
    [
        *(OfTheRowsBefore, OfTheFirstRows, OfTheLastCache, OneCacheForAsManyRows),
        *(KeepsTheLastChunk, ShortenedByOthers, CutAfterOthers),
    ],
)
def test_sequences_that_mix_are_found(make) -> None:
    (finding,) = examined(make).findings
    assert " of their own " in finding.message or " of its own " in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("make", [Sums, CountsAllSteps, Rotated, RefusesChunksAndCounts, OneAtATime, TwoAtATime])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sequences_that_keep_apart_are_silent(make, seed: int) -> None:
    result = examined(make, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_step_that_takes_one_token_at_a_time_has_no_chunks() -> None:
    result = examined(OneAtATime, code="DEC102")
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
    assert "a step takes 1 tokens, got 2" in result.reason


def test_a_step_that_refuses_some_chunks_is_found() -> None:
    result = examined(TwoAtATime, code="DEC102")
    assert result.verdict is Verdict.FAIL


class Shortened(Sums):
    """Answers for a part of the tokens or rows that it is given once it has seen some."""

    def __init__(self, after, kept):
        super().__init__()
        self.after, self.kept = after, kept

    def forward(self, x, cache=None):
        cache = {} if cache is None else cache
        y = super().forward(x, cache)
        cache["seen"] = cache.get("seen", 0) + x.shape[1]
        if x.shape[1] < cache["seen"] > self.after:
            y = y[self.kept]  # here
        return y


@pytest.mark.parametrize(
    ("kept", "code", "got"),
    [
        (slice(0, 0), "DEC101", "[0, 1, 8], expected [1, 1, ...]"),
        ((slice(None), slice(1, None)), "DEC101", "[1, 0, 8], expected [1, 1, ...]"),
        ((slice(None), slice(1, None)), "DEC102", "[3, 2, 8], expected [3, 3, ...]"),
    ],
)
def test_a_step_that_leaves_tokens_or_rows_out_is_found_in_its_line(kept, code: str, got: str) -> None:
    finding, *_ = examined(lambda: Shortened(40, kept), code=code).findings
    assert f"decoding returned an output {got}, or of the last token alone" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


def test_a_step_that_answers_for_the_last_token_alone_is_right() -> None:
    assert examined(lambda: Shortened(0, (slice(None), slice(-1, None))), code="DEC102").verdict is Verdict.PASS
