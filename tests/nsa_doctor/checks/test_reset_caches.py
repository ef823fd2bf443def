"""A cache that is reset is held to what a new one gives, and its other rows to what they would have given."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import caches_to_reset
from tests.nsa_doctor.checks.caches_to_reset import (
    DIM,
    LAYERS,
    AnotherModels,
    Clears,
    Grown,
    Held,
    HeldByHalf,
    KeepsALayer,
    KeepsCount,
    KeepsFilled,
    KeepsItsCount,
    KeepsKeys,
    KeepsTotal,
    Largest,
    Means,
    Model,
    NoReset,
    OfALayer,
    PeaksOfZero,
    ReturnsANew,
    Ring,
    Room,
    RowMeans,
    RowsByMask,
    RowsByMaskOfSome,
    RowsOfAll,
    RowsOfSome,
    RowsOneByOne,
    RowsOrAll,
    ZeroesRoom,
    ZeroesWhatItSees,
    findings,
    subject_of,
)


class CrossCache(Grown):
    """With keys of what is heard, made once."""

    def __init__(self) -> None:
        super().__init__()
        self.cross: Any = None


class CountsAgain(CrossCache):
    def reset(self) -> None:
        self.keys, self.values, self.seen = [None] * LAYERS, [None] * LAYERS, 0


class Hears(Model):
    """Attends to a memory where it is given one."""

    def __init__(self, kind: type = CrossCache) -> None:
        super().__init__(kind)
        self.heard = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, memory: Tensor | None = None, cache: Any = None) -> Tensor:  # type: ignore[override]
        x = super().forward(x, cache)
        keys = None if cache is None else cache.cross
        if keys is None and memory is not None:
            keys = self.heard(memory)
        if cache is not None:
            cache.cross = keys
        return x if keys is None else x + (x @ keys.mT).softmax(-1) @ keys


class Hypotheses(CountsAgain):
    """Another text of what is heard begins; what is heard goes by another method."""

    def clear_cross(self) -> None:
        self.cross = None


class HearsAgain(Hears):
    """From what it is given at every call."""

    def forward(self, x: Tensor, memory: Tensor | None = None, cache: Any = None) -> Tensor:  # type: ignore[override]
        if cache is not None:
            cache.cross = None
        return super().forward(x, memory, cache)


class OfTheFirst:
    """Of several layers."""

    def __init__(self) -> None:
        self.layers = [OfALayer() for _ in range(LAYERS)]

    def reset(self) -> None:
        self.layers[0].reset()


class InOne(Means):
    """Caches of layers in an object."""

    def make_cache(self) -> OfTheFirst:
        return OfTheFirst()

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x, None if cache is None else cache.layers)

    make_caches = None  # type: ignore[assignment]


class Steps(nn.Module):
    """A prompt is read by a method, and the next tokens by another."""

    def __init__(self, kind: type = Grown) -> None:
        super().__init__()
        self.kind, self.body = kind, Model()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def new_cache(self) -> Any:
        return self.kind()

    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        cache = self.new_cache()
        return self.body(x, cache), cache

    def step(self, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        return self.body(x, cache), cache


class Returns(Model):
    """Its forward makes a cache, returns it, and takes it back."""

    def forward(self, x: Tensor, past_key_values: Any = None, use_cache: bool = False) -> Any:
        past_key_values = self.kind() if past_key_values is None and use_cache else past_key_values
        output = super().forward(x, past_key_values)
        return (output, past_key_values) if use_cache else output

    make_cache = None  # type: ignore[assignment]


class CountingCache(KeepsCount):
    """One that a class beside the module makes, by its name."""


FAULTY: dict[str, tuple[Callable[[], Any], str, str]] = {
    "keeps the count": (lambda: Model(KeepsCount), "reset", "cache.seen"),
    "keeps the keys": (lambda: Model(KeepsKeys), "reset", "cache.keys[0]"),
    "keeps a layer": (lambda: Model(KeepsALayer), "reset", "cache.keys[1]"),
    "zeroes what it sees": (lambda: Model(ZeroesWhatItSees), "reset", "cache.keys[0]"),
    "zeroes a room": (lambda: Model(ZeroesRoom), "reset", "cache.seen"),
    "a ring stays full": (lambda: Model(KeepsFilled), "reset", "cache.filled[0]"),
    "the module's": (lambda: KeepsItsCount(NoReset), "reset_cache", "cache.seen"),
    "the module's own": (HeldByHalf, "reset", "cache.seen"),
    "of layers": (lambda: Means(KeepsTotal), "reset", "cache[0].total"),
    "peaks of zero": (lambda: Largest(PeaksOfZero), "reset", "cache.peak"),
    "by methods": (lambda: Steps(KeepsCount), "reset", "cache.seen"),
    "of the first layer": (InOne, "reset", "cache.layers[1].total and others"),
    "what was heard": (lambda: Hears(CountsAgain), "reset", "cache.cross"),
    "a forward returns it": (lambda: Returns(CountingCache), "reset", "cache.seen"),
    "rows keep their count": (lambda: RowMeans(RowsOfSome), "reset", "cache.count"),
    "rows by a mask keep their count": (lambda: RowMeans(RowsByMaskOfSome), "reset", "cache.count"),
    "rows reset the others": (lambda: RowMeans(RowsOfAll), "reset", ""),
}


@pytest.mark.parametrize(("make", "function", "field"), FAULTY.values(), ids=FAULTY)
def test_what_stays_is_found(make: Callable[[], Any], function: str, field: str) -> None:
    subject = subject_of(make)
    assert subject.offers("reset") or subject.offers("reset_rows"), subject.notes
    (finding,) = findings(subject)
    assert finding.where.file in (__file__, caches_to_reset.__file__)
    assert finding.where.function == function
    assert finding.evidence["field"] == field, finding.message


HEALTHY: dict[str, Callable[[], Any]] = {
    "grown": Model,
    "a room": lambda: Model(Room),
    "a ring": lambda: Model(Ring),
    "a new one": lambda: Model(ReturnsANew),
    "another name": lambda: Model(Clears),
    "the module's": lambda: AnotherModels(NoReset),
    "the module's own": Held,
    "of layers": Means,
    "peaks": Largest,
    "by methods": Steps,
    "by methods, a room": lambda: Steps(Room),
    "what is heard": Hears,
    "what is heard once": lambda: Hears(Hypotheses),
    "what is heard again": lambda: HearsAgain(CountsAgain),
    "a forward returns it": lambda: Returns(Grown),
    "a forward returns a room": lambda: Returns(Room),
    "rows": RowMeans,
    "rows by a mask": lambda: RowMeans(RowsByMask),
    "rows one by one": lambda: RowMeans(RowsOneByOne),
    "rows or all": lambda: RowMeans(RowsOrAll),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_a_reset_of_all_is_found_and_silent(make: Callable[[], Any]) -> None:
    subject = subject_of(make)
    assert subject.offers("reset") or subject.offers("reset_rows"), subject.notes
    found = run_check(registry.load("DEC116"), subject)
    assert (found.verdict, found.findings) == (Verdict.PASS, ())


def test_rows_are_found_beside_all() -> None:
    subject = subject_of(lambda: RowMeans(RowsOrAll))
    assert (subject.offers("reset"), subject.offers("reset_rows")) == (True, True)
