"""What can be done with a plain module's cache is found by its names, and held to what it has to leave behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@pytest.mark.parametrize("make", [Model, Listed, lambda: Model(Removes)])
def test_right_caches_are_found_and_silent(make: Callable[[], nn.Module]) -> None:
    subject = subject_of(make)
    assert (subject.offers("reorder"), subject.offers("crop")) == (True, True)
    assert result("DEC113", make).findings == result("DEC114", make).findings == ()


@pytest.mark.parametrize(
    ("code", "kind", "field", "name"),
    [("DEC113", KeepsValues, "cache.values", "reorder"), ("DEC114", KeepsCount, "cache.seen", "crop")],
)
def test_what_is_left_behind_is_named(code: str, kind: type, field: str, name: str) -> None:
    (finding,) = result(code, lambda: Model(kind)).findings
    assert f"{field} is other than" in finding.message
    assert (finding.where.file, finding.where.function) == (__file__, name)


def test_a_method_that_changes_what_it_should_leave_is_not_taken() -> None:
    class Shuffles(Cache):
        def reorder(self, rows: Tensor) -> None:
            self.keys = self.keys.flip(1)

    subject = subject_of(lambda: Model(Shuffles))
    assert (subject.offers("reorder"), subject.offers("crop")) == (False, True)
