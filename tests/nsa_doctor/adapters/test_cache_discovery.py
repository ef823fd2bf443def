"""What can be done with a plain module's cache is found by its names, and held to what it has to leave behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Cache:
    """Keys, values and how many there were."""

    def __init__(self) -> None:
        self.keys = self.values = torch.zeros(0)
        self.seen = 0

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = k if self.seen == 0 else torch.cat((self.keys, k), 1)
        self.values = v if self.seen == 0 else torch.cat((self.values, v), 1)
        self.seen += k.shape[1]
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def crop(self, length: int) -> None:
        self.keys, self.values, self.seen = self.keys[:, :length], self.values[:, :length], length


class KeepsValues(Cache):
    def reorder(self, rows: Tensor) -> None:
        self.keys = self.keys[rows]


class Room(Cache):
    """Rows in a pool, by a table of which line each has; a row that is chosen twice gets a line of its own, or not."""

    shares = False

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0, dtype=torch.long)

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.seen == 0:
            self.table = torch.arange(len(k))
            self.keys, self.values = k.new_zeros(len(k), 64, DIM), v.new_zeros(len(v), 64, DIM)
        end = self.seen + k.shape[1]
        self.keys[self.table, self.seen : end], self.values[self.table, self.seen : end] = k, v
        self.seen = end
        return self.keys[self.table, :end], self.values[self.table, :end]

    def crop(self, length: int) -> None:
        self.seen = length

    def reorder(self, rows: Tensor) -> None:
        if self.shares:
            self.table = self.table[rows]
        else:
            self.keys, self.values = self.keys[self.table[rows]], self.values[self.table[rows]]
            self.table = torch.arange(len(rows))


class Shares(Room):
    shares = True


class KeepsCount(Cache):
    def crop(self, length: int) -> None:
        self.keys, self.values = self.keys[:, :length], self.values[:, :length]


class Removes(Cache):
    crop = None  # type: ignore[assignment]

    def rollback(self, number: int) -> "Removes":
        Cache.crop(self, self.seen - number)
        return self


class Model(nn.Module):
    """Causal attention whose keys carry their positions."""

    def __init__(self, make: Callable[[], Any] = Cache) -> None:
        super().__init__()
        self.qkv, self.make = nn.Linear(DIM, 3 * DIM), make

    def forward(self, x: Tensor, past_key_values: Any = None, use_cache: bool = False) -> Any:
        cache = past_key_values or self.make()
        past = cache.seen
        turned = torch.arange(past, past + x.shape[1], device=x.device).to(x.dtype).sin()[:, None]
        q, k, v = self.qkv(x).chunk(3, -1)
        keys, values = cache.add(k + turned, v)
        seen = torch.ones(x.shape[1], keys.shape[1], dtype=torch.bool, device=x.device).tril(past)
        output = (q @ keys.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ values
        return (output, cache) if use_cache else output


class Listed(Model):
    """A list of caches, of which each is cropped, and rows that the module itself chooses."""

    def forward(self, x: Tensor, past_key_values: Any = None, use_cache: bool = False) -> Any:
        answer = super().forward(x, past_key_values and past_key_values[0], use_cache)
        return (answer[0], [answer[1]]) if use_cache else answer

    def _reorder_cache(self, past: list[Cache], rows: Tensor) -> list[Cache]:
        for each in past:
            each.reorder(rows)
        return past


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    def factory() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return adapt(SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True), factory)


def result(code: str, make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load(code), subject_of(make))


@pytest.mark.parametrize("make", [Model, Listed, lambda: Model(Removes), lambda: Model(Room)])
def test_right_caches_are_found_and_silent(make: Callable[[], nn.Module]) -> None:
    subject = subject_of(make)
    assert (subject.offers("reorder"), subject.offers("crop")) == (True, True)
    assert result("DEC113", make).findings == result("DEC114", make).findings == ()


@pytest.mark.parametrize(
    ("code", "kind", "field", "name"),
    [
        ("DEC113", KeepsValues, "cache.values", "reorder"),
        ("DEC113", Shares, "cache.keys", "reorder"),
        ("DEC114", KeepsCount, "cache.seen", "crop"),
    ],
)
def test_what_is_left_behind_is_named(code: str, kind: type, field: str, name: str) -> None:
    (finding,) = result(code, lambda: Model(kind)).findings
    assert f"{field} is other than" in finding.message
    assert (finding.where.file, finding.where.function) == (__file__, name)


def test_an_adapter_that_says_how_to_decode_need_not_say_how_rows_are_chosen() -> None:
    def decoded(module: nn.Module, x: Tensor, cache: Any = None) -> Any:
        return module(x, cache, use_cache=True)

    seams = {"prefill": decoded, "step": decoded}
    subject = subject_of(lambda: Adapter(make=lambda: Model(Shares), seams=seams))
    (finding,) = run_check(registry.load("DEC113"), subject).findings
    assert finding.where.function == "reorder"


def test_a_method_that_changes_what_it_should_leave_is_not_taken() -> None:
    class Shuffles(Cache):
        def reorder(self, rows: Tensor) -> None:
            self.keys = self.keys.flip(1)

    subject = subject_of(lambda: Model(Shuffles))
    assert (subject.offers("reorder"), subject.offers("crop")) == (False, True)
