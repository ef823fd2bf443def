"""Rows of a cache are chosen with times of each row's own: the clock that stays behind is found."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Cache:
    """Sums of what was read, by row, and the clock."""

    def __init__(self) -> None:
        self.total: Any = 0.0
        self.origin: Any = None
        self.last: Any = None
        self.count = 0

    def choose(self, rows: Tensor, left: str) -> "Cache":
        """Other rows of all but what is left."""
        for name in ("total", "origin", "last"):
            if name != left:
                setattr(self, name, getattr(self, name)[rows])
        return self


class Timed(nn.Module):
    """A sum over tokens, beside the time since the first of them and since the last, which times by default give."""

    takes = torch.float64
    uses_origin = True

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.to_shift = nn.Linear(DIM, DIM), nn.Linear(2, DIM)

    def forward(self, x: Tensor, times: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        cache = Cache() if cache is None else cache
        if times is None:
            times = torch.arange(cache.count, cache.count + x.shape[1], dtype=self.takes).expand(len(x), -1)
        if times.dtype != self.takes:
            raise TypeError(f"times are {self.takes}")
        if cache.origin is None or not self.uses_origin:
            cache.origin = times[:, :1]
        if cache.last is None:
            cache.last = times[:, :1]
        gaps = times.diff(dim=1, prepend=cache.last)
        cache.last, cache.count = times[:, -1:], cache.count + x.shape[1]
        sums = cache.total + self.layer(x).cumsum(1)
        cache.total = sums[:, -1:]
        return sums + self.to_shift(torch.stack((times - cache.origin, gaps), -1).to(x.dtype)).tanh()


class OfSeconds(Timed):
    takes = torch.int64


class OfGaps(Timed):
    """Where its rows began is kept and not read."""

    uses_origin = False


class Untimed(Timed):
    def forward(self, x: Tensor, times: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        return super().forward(x, None, cache)


class OfTheFirstCall(Timed):
    """Times are taken with the prompt alone, and the clock goes on by itself."""

    def forward(self, x: Tensor, times: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        if cache is not None and cache.count and times is not None:
            raise ValueError("times are given once")
        return super().forward(x, times, cache)


def examined(make: type[nn.Module], left: str = "") -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, Cache]:
        cache = Cache()
        return module(x, cache=cache), cache

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        prefill=prefill,
        step=lambda module, x, cache: (module(x, cache=cache), cache),
        reorder=lambda _module, cache, rows: cache.choose(rows, left),
        input="embeddings",
        width=DIM,
        max_length=64,
        packages=("tests",),
    )
    return run_check(registry.load("DEC113"), subject)


@pytest.mark.parametrize("make", [Timed, OfSeconds])
@pytest.mark.parametrize("left", ["origin", "last"])
def test_a_clock_that_stays_behind_is_found(make: type[nn.Module], left: str) -> None:
    (finding,) = examined(make, left).findings
    assert finding.evidence["field"] == f"cache.{left}"
    assert "rows 2, 0, 0 are chosen of a cache of 3, each with times of its own: the next step" in finding.message
    assert finding.where.function == "<lambda>"


def test_what_is_wrong_without_times_is_said_without_them() -> None:
    (finding,) = examined(Timed, "total").findings
    assert "times" not in finding.message


@pytest.mark.parametrize("make", [Timed, OfSeconds, OfGaps, Untimed, OfTheFirstCall])
def test_what_takes_all_of_a_row_with_it_passes(make: type[nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_a_field_that_no_step_reads_may_stay() -> None:
    assert examined(OfGaps, "origin").verdict is Verdict.PASS


@pytest.mark.parametrize("make", [Untimed, OfTheFirstCall])
def test_what_is_given_no_times_in_a_step_is_not_asked_with_some(make: type[nn.Module]) -> None:
    assert examined(make, "origin").verdict is Verdict.PASS
