"""A method that chooses rows of all fields but one is found at the line that hands it on; odd right ones are not."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


@dataclass
class Value:
    keys: Tensor
    count: Tensor
    done: Tensor

    def select(self, index: Tensor) -> "Value":
        return Value(self.keys[index], self.count[index], self.done)  # here: a value


class InPlace:
    def __init__(self, x: Tensor) -> None:
        self.keys, self.values = x, x * 2

    def reorder(self, beams: Tensor) -> None:  # here: in place
        self.keys = self.keys.index_select(0, beams)


class Pair(NamedTuple):
    keys: Tensor
    values: Tensor

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int):
            return tuple.__getitem__(self, rows)
        values = self.values  # here: a named tuple
        return Pair(self.keys[rows], values)


@dataclass
class Inner:
    keys: Tensor
    values: Tensor

    def take_rows(self, idx: Tensor) -> "Inner":
        return Inner(keys=self.keys[idx], values=self.values[idx])


@dataclass
class Outer:
    inner: Inner
    sums: Tensor
    ends: Tensor

    def take_rows(self, idx: Tensor) -> "Outer":
        return Outer(
            inner=self.inner,  # here: an inner object
            sums=self.sums[idx],
            ends=self.ends[idx],
        )


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a: Tensor
        self.b: Tensor
        self.register_buffer("a", torch.zeros(()), persistent=False)
        self.register_buffer("b", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> None:
        self.a, self.b = x.detach(), x.detach().cumsum(1)

    def reorder_rows(self, order: Tensor) -> None:
        self.a, self.b = self.a[order], self.b  # here: a module


class Holds(nn.Module):
    """Makes an object of its input on the way."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.out, self.made = nn.Linear(DIM, DIM), made
        self.part = made(torch.zeros(1, 1, DIM)) if isinstance(made, type) and issubclass(made, Held) else None

    def forward(self, x: Tensor) -> Tensor:
        held = self.part(x) if self.part is not None else self.made(x)
        return self.out(x) + (0 if held is None else 0 * x)


class HoldsHeld(Holds):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.out, self.part = nn.Linear(DIM, DIM), Held()


def value(x: Tensor, kind: Any = Value) -> Any:
    return kind(x, x.sum((1, 2)).round().long(), x[:, :, 0].amax(1) > 1)


FAULTY = {
    "a value": lambda: Holds(value),
    "in place": lambda: Holds(InPlace),
    "a named tuple": lambda: Holds(lambda x: Pair(x, x.cumsum(1))),
    "an inner object": lambda: Holds(lambda x: Outer(Inner(x, x * 2), x.sum(1), x[:, -1])),
    "a module": HoldsHeld,
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_field_that_is_left_is_found(name: str) -> None:
    result = run_check(registry.load("DEC118"), small_subject(FAULTY[name], width=DIM))
    (finding,) = result.findings
    assert finding.where.file == __file__
    assert finding.where.line is not None
    assert Path(__file__).read_text(encoding="utf-8").splitlines()[finding.where.line - 1].endswith(f"# here: {name}")


@dataclass
class Whole(Value):
    def select(self, index: Tensor) -> "Whole":
        return Whole(**{each.name: getattr(self, each.name)[index] for each in fields(self)})


@dataclass
class Counting(Value):
    """The count is one for all rows."""

    def select(self, index: Tensor) -> "Counting":
        return Counting(self.keys[index], self.count, self.done[index])


@dataclass
class Said:
    keys: Tensor
    values: Tensor
    bias: Tensor  # the same for every beam of a sample

    def select(self, index: Tensor) -> "Said":
        return Said(self.keys[index], self.values[index], self.bias)


class ByTurns(InPlace):
    """One method for each field, and one that calls both."""

    def reorder_keys(self, beams: Tensor) -> None:
        self.keys = self.keys[beams]

    def reorder_values(self, beams: Tensor) -> None:
        self.values = self.values[beams]

    def reorder(self, beams: Tensor) -> None:
        self.reorder_keys(beams)
        self.reorder_values(beams)


@dataclass
class Encoded:
    keys: Tensor
    values: Tensor
    encoder_keys: Tensor

    def select(self, index: Tensor) -> "Encoded":
        return Encoded(self.keys[index], self.values[index], self.encoder_keys)


@dataclass
class Replaced:
    keys: Tensor
    values: Tensor
    alive: Tensor

    def choose_alive(self, index: Tensor) -> "Replaced":
        return Replaced(self.keys[index], self.values[index], self.alive)


def continues(state: Replaced, parents: Tensor) -> Replaced:
    chosen = state.choose_alive(parents)
    chosen.alive = state.alive.gather(0, parents)
    return chosen


@dataclass
class ByLayers:
    keys: Tensor
    values: Tensor

    def select(self, index: Tensor) -> Tensor:
        return self.keys[index]


@dataclass
class Layered:
    keys: Tensor  # [layers, B, S, D]
    values: Tensor
    sums: Tensor

    def reorder(self, rows: Tensor) -> "Layered":
        return Layered(self.keys[:, rows], self.values[:, rows], self.sums[rows])


@dataclass
class OfSlots:
    keys: Tensor
    values: Tensor
    home: Tensor

    def reorder(self, rows: Tensor) -> "OfSlots":
        return OfSlots(self.keys[rows], self.values[rows], self.home)


HEALTHY = {
    "whole": lambda x: value(x, Whole),
    "the same in all rows": lambda x: Counting(x, torch.full((len(x),), x.shape[1]), x[:, 0, 0] > 0),
    "said": lambda x: Said(x, x * 2, x[:, 0]),
    "by turns": ByTurns,
    "encoded": lambda x: Encoded(x, x * 2, x * 3),
    "its callers": lambda x: Replaced(x, x * 2, x[:, 0, 0]),
    "another answer": lambda x: ByLayers(x, x * 2),
    "layers first": lambda x: Layered(torch.stack((x, x)), torch.stack((x, x)), x.sum(1)),
    "of slots": lambda x: OfSlots(x, x * 2, torch.arange(len(x))),
    "not a number": lambda x: Inner(x.log(), x * 2),
    "raises": lambda x: Raises(x, x * 2),
}


@dataclass
class Raises:
    keys: Tensor
    values: Tensor

    def select(self, index: Tensor) -> "Raises":
        if len(index) != 1:
            raise ValueError("one row at a time")
        return Raises(self.keys[index], self.values)


@pytest.mark.parametrize("name", HEALTHY)
def test_what_needs_no_choice_is_left_alone(name: str) -> None:
    result = run_check(registry.load("DEC118"), small_subject(lambda: Holds(HEALTHY[name]), width=DIM))
    assert result.findings == ()
    assert result.verdict is (Verdict.SKIP if name == "layers first" else Verdict.PASS), result


def test_a_subject_without_such_classes_is_not_asked() -> None:
    result = run_check(
        registry.load("DEC118"), small_subject(lambda: nn.Linear(DIM, DIM), width=DIM, packages=("torch",))
    )
    assert result.verdict is Verdict.SKIP
