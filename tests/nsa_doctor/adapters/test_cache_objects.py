"""A cache that the caller makes, and that a call extends in place, is found by its names and has to prove itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, VOCABULARY = 8, 12


class SumCache:
    """A running sum for each layer, and how many tokens it is of."""

    def __init__(self, n_layers: int) -> None:
        self.sums: list[Any] = [None] * n_layers
        self.seen = [0] * n_layers

    def add(self, layer: int, x: Tensor) -> tuple[Tensor, int]:
        start, past = self.seen[layer], self.sums[layer]
        sums = x.cumsum(1) + (0 if past is None else past)
        self.sums[layer], self.seen[layer] = sums[:, -1:], start + x.shape[1]
        return sums, start

    def reorder(self, rows: Tensor) -> None:
        self.sums = [each[rows] for each in self.sums]

    def fork(self) -> "SumCache":
        other = SumCache(len(self.sums))
        other.sums, other.seen = [each.clone() for each in self.sums], list(self.seen)
        return other


class Layer(nn.Module):
    """Each token's mean with all before it; a step counts from `slip` tokens too far."""

    def __init__(self, index: int, slip: int = 0) -> None:
        super().__init__()
        self.mix, self.index, self.slip = nn.Linear(DIM, DIM), index, slip

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        sums, start = (x.cumsum(1), 0) if cache is None else cache.add(self.index, x)
        start += self.slip if start else 0
        position = torch.arange(start + 1, start + x.shape[1] + 1, dtype=x.dtype)
        return x + self.mix(sums / position[:, None])


class Model(nn.Module):
    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self.n_layers = 2
        self.layers = nn.ModuleList(Layer(index, slip) for index in range(2))


class MakesIt(Model):
    def make_cache(self) -> SumCache:
        return SumCache(len(self.layers))

    def forward(self, x: Tensor, cache: SumCache | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, cache)
        return x


class OfItsFile(Model):
    """Its caller builds the cache by a class beside it, and gets it back beside the output."""

    def forward(self, x: Tensor, mask: Tensor | None = None, past_key_values: SumCache | None = None) -> Any:
        for layer in self.layers:
            x = layer(x, past_key_values)
        return x if past_key_values is None else (x, past_key_values)


class OfItsPart(nn.Module):
    """Its forward does not hand the cache on that its part takes."""

    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self.body, self.out = MakesIt(slip), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


class Filled(Model):
    """Fills a dictionary that is given empty."""

    def forward(self, x: Tensor, kv_cache: dict[str, Any] | None = None) -> Tensor:
        cache = None
        if kv_cache is not None:
            cache = kv_cache.setdefault("sums", SumCache(len(self.layers)))
        for layer in self.layers:
            x = layer(x, cache)
        return x


class CountsByHand:
    """What its caller has to advance."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.offset = 0

    def add(self, layer: int, x: Tensor) -> tuple[Tensor, int]:
        sums = x.cumsum(1) + self.sums.get(layer, torch.zeros(()))
        self.sums[layer] = sums[:, -1:]
        return sums, self.offset


class TellsItToCount(Model):
    def new_cache(self) -> CountsByHand:
        return CountsByHand()

    def forward(self, x: Tensor, cache: CountsByHand | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, cache)
        return x


class ByteState:
    """One text, byte by byte."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []


class Bytes(nn.Module):
    """Means of embeddings, kept in a state that a step is given first; `keeps` of the newest are left out."""

    def __init__(self, misses: int = 0) -> None:
        super().__init__()
        self.table, self.head, self.misses = nn.Embedding(VOCABULARY, DIM), nn.Linear(DIM, VOCABULARY), misses

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.head(x.cumsum(1) / torch.arange(1, ids.shape[1] + 1, dtype=x.dtype)[:, None])

    def step(self, state: ByteState, byte: int) -> Tensor:
        state.rows.append(self.table.weight[int(byte)])
        return self.head(torch.stack(state.rows[min(self.misses, len(state.rows) - 1) :]).mean(0))


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    def factory() -> nn.Module:
        torch.manual_seed(0)
        return make()

    is_bytes = isinstance(make(), Bytes)
    kind, width = ("tokens", VOCABULARY) if is_bytes else ("embeddings", DIM)
    return adapt(SubjectRequest(spec="tests:make", input=kind, width=width, explore=True), factory)  # type: ignore[arg-type]


def result(code: str, make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load(code), subject_of(make))


HEALTHY = {
    "a method": (MakesIt, "forward(x, cache=make_cache())"),
    "a class": (OfItsFile, "forward(x, past_key_values=SumCache(n_layers))"),
    "a part": (OfItsPart, "forward(x) with body(..., cache=make_cache())"),
    "a dictionary": (Filled, "forward(x, kv_cache={})"),
    "a count": (TellsItToCount, "whose tokens its caller counts"),
    "bytes": (Bytes, "ByteState() and step(state, byte) of a row's number"),
}


@pytest.mark.parametrize(("make", "words"), HEALTHY.values(), ids=HEALTHY)
def test_a_right_cache_is_found_and_silent(make: Callable[[], nn.Module], words: str) -> None:
    subject = subject_of(make)
    assert any(words in note for note in subject.notes), subject.notes
    for code in ("DEC101", "DEC106", "DEC107", "DEC110", "DEC111", "DEC112"):
        found = run_check(registry.load(code), subject)
        assert (found.verdict, found.findings) == (Verdict.PASS, ()), (code, found)


@pytest.mark.parametrize(
    ("make", "function"),
    [(lambda: MakesIt(slip=1), "forward"), (lambda: Bytes(misses=1), "step"), (lambda: Bytes(misses=3), "step")],
    ids=["a method", "bytes", "bytes later"],
)
def test_a_step_that_goes_wrong_is_found(make: Callable[[], nn.Module], function: str) -> None:
    (finding,) = result("DEC101", make).findings
    assert (finding.where.file, finding.where.function) == (__file__, function)


class WantsItsMask(Model):
    """Several tokens behind a past see each other as a mask of its caller says, and one needs none."""

    def forward(self, x: Tensor, past_key_values: Any = None, attention_mask: Tensor | None = None) -> Tensor:
        if past_key_values is not None and past_key_values.seen[0] and x.shape[1] > 1 and attention_mask is None:
            x = x.mean(1, keepdim=True).expand_as(x)
        for layer in self.layers:
            x = layer(x, past_key_values)
        return x


def test_several_tokens_whose_mask_the_caller_gives_are_left_alone() -> None:
    subject = subject_of(WantsItsMask)
    assert any("one token at a time" in note for note in subject.notes), subject.notes
    found = run_check(registry.load("DEC102"), subject)
    assert (found.verdict, found.findings) == (Verdict.SKIP, ())


def test_a_prompt_that_is_read_by_tokens_is_no_long_one() -> None:
    subject = subject_of(Bytes)
    lengths: list[int] = []
    prefill = subject.prefill
    assert prefill is not None

    @wraps(prefill)
    def noted(module: nn.Module, x: Tensor) -> Any:
        lengths.append(x.shape[1])
        return prefill(module, x)

    assert run_check(registry.load("DEC106"), replace(subject, prefill=noted)).findings == ()
    assert 70 <= max(lengths) < 260


def test_caches_are_independent() -> None:
    subject = subject_of(MakesIt)
    assert subject.prefill is not None
    module, x = subject.build(0), torch.randn(1, 4, DIM)
    first, second = subject.prefill(module, x)[1], subject.prefill(module, x)[1]
    assert first is not second
    assert first.seen == second.seen == [4, 4]


def test_a_part_keeps_no_hook() -> None:
    subject = subject_of(OfItsPart)
    assert subject.prefill is not None
    module = subject.build(0)
    subject.prefill(module, torch.randn(1, 4, DIM))
    assert not module.body._forward_pre_hooks


class WantsPositions(Model):
    """Positions come from its caller: the cache holds sums alone, and a step that is told nothing is not its own."""

    def make_cache(self) -> SumCache:
        return SumCache(2)

    def forward(self, x: Tensor, cache: SumCache | None = None, start_pos: int = 0) -> Tensor:
        for layer in self.layers:
            sums, _ = (x.cumsum(1), 0) if cache is None else cache.add(layer.index, x)
            x = x + layer.mix(sums / torch.arange(start_pos + 1, start_pos + x.shape[1] + 1, dtype=x.dtype)[:, None])
        return x


class Unread(Model):
    """A state that it notes things in, and does not read."""

    def make_state(self) -> dict[str, Any]:
        return {}

    def forward(self, x: Tensor, state: dict[str, Any] | None = None) -> Tensor:
        if state is not None:
            state["norm"] = x.norm()
        for layer in self.layers:
            x = layer(x)
        return x


class OtherClass(Model):
    """A class of that name has nothing to do with what its forward takes."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if memory is None else x + memory.mean(1, keepdim=True)


@pytest.mark.parametrize("make", [WantsPositions, Unread, OtherClass])
def test_what_is_no_cache_of_its_past_is_not_taken(make: Callable[[], nn.Module]) -> None:
    subject = subject_of(make)
    assert (subject.offers("prefill"), subject.offers("step")) == (False, False), subject.notes


class Ring:
    """A buffer that is written in place; copies are made by `copies`."""

    def __init__(self) -> None:
        self.sums, self.seen = torch.zeros(0), 0

    def add(self, layer: int, x: Tensor) -> tuple[Tensor, int]:
        start = self.seen // 2
        if self.seen == 0:
            self.sums = x.new_zeros(2, x.shape[0], 1, DIM)
        sums = x.cumsum(1) + self.sums[layer]
        self.sums[layer] = sums[:, -1:]
        self.seen += x.shape[1]
        return sums, (start if layer == 0 else (self.seen - 2 * x.shape[1]) // 2)

    def fork(self) -> "Ring":
        other = type(self)()
        other.sums, other.seen = self.copied(), self.seen
        return other

    def copied(self) -> Tensor:
        return self.sums.clone()


class SharingRing(Ring):
    def copied(self) -> Tensor:
        return self.sums


class Lost(Ring):
    """Copies of it are of all rows, but for the last."""

    def copied(self) -> Tensor:
        return torch.cat((self.sums[:, :-1], self.sums[:, :1]), 1)


class Rings(MakesIt):
    def __init__(self, kind: type = Ring) -> None:
        super().__init__()
        self.kind = kind

    def make_cache(self) -> Any:
        return self.kind()


class OfModule(Rings):
    """Copies are made by the module."""

    def clone_cache(self, cache: Any) -> Any:
        return cache.fork()


@pytest.mark.parametrize("make", [MakesIt, Rings, OfModule])
def test_a_copy_that_goes_on_by_itself_is_found_and_silent(make: Callable[[], nn.Module]) -> None:
    assert subject_of(make).offers("fork")
    found = result("DEC115", make)
    assert (found.verdict, found.findings) == (Verdict.PASS, ())


def test_a_copy_that_is_written_into_is_found() -> None:
    (finding,) = result("DEC115", lambda: Rings(SharingRing)).findings
    assert (finding.where.file, finding.where.function) == (__file__, "fork")
    assert "changes cache.sums of the other" in finding.message


def test_a_copy_of_something_else_is_none() -> None:
    assert not subject_of(lambda: Rings(Lost)).offers("fork")


class KeepsSums(SumCache):
    def reorder(self, rows: Tensor) -> None:
        self.sums = [self.sums[0][rows], *self.sums[1:]]


class Keeping(MakesIt):
    def make_cache(self) -> SumCache:
        return KeepsSums(2)


def test_rows_of_a_made_cache_are_chosen() -> None:
    assert result("DEC113", MakesIt).findings == ()
    (finding,) = result("DEC113", Keeping).findings
    assert "cache.sums[1] is other than" in finding.message
