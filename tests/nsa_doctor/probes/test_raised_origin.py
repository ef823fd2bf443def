"""Where an operation that raises has what it was given from."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.measurement import Point, RaisedOrigin
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.probes.numerics.raised_origin import locate_raise
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Attention(nn.Module):
    """Mixes the halves of its input in a way that a test hands in."""

    def __init__(self, mix: Callable[["Attention", Tensor], Tensor], inner: int = WIDTH) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, inner)
        self.register_buffer("table", torch.zeros(4, WIDTH))
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        return self.mix(self, x)


def turned(x: Tensor) -> Tensor:
    """A helper that two lines call."""
    return x.transpose(1, 2)


def of_heads(module: Attention, x: Tensor) -> Tensor:
    """The fault is in the first line, which is called, and shows in the last."""
    keys = turned(module.project(x))
    scores = x.softmax(-1) * 2
    scores = scores + 1
    return scores @ keys.transpose(1, 2)


def of_a_layer(module: Attention, x: Tensor) -> Tensor:
    """The fault is in what the class makes."""
    gated = module.project(x).sigmoid()
    return module.gate(gated) * gated


def of_ranks(module: Attention, x: Tensor) -> Tensor:
    """The fault is in a number, not in a shape."""
    ranks = torch.arange(x.shape[1]) + 9
    ranks = ranks.clamp(min=0)
    return x + module.table[ranks]


def of_its_own(_: Attention, x: Tensor) -> Tensor:
    """No function of torch raises it."""
    raise ValueError(f"{x.shape[1]} tokens are none that this serves")


def line_of(function: Callable[..., object], number: int) -> int:
    """The line of a function's body, the docstring left out."""
    return function.__code__.co_firstlineno + 1 + number


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    return small_subject(make, width=WIDTH, max_length=80)


def origin(make: Callable[[], nn.Module], length: int = 6) -> RaisedOrigin:
    return locate_raise(subject_of(make), Point(length=length), Conditions()).raised


def trails(make: Callable[[], nn.Module]) -> list[list[tuple[str, int]]]:
    return [[(PurePath(place.file).name, place.line) for place in trail] for trail in origin(make).given]


def here(line: int) -> tuple[str, int]:
    return "test_raised_origin.py", line


def test_a_shape_is_followed_through_the_helper_that_made_it() -> None:
    found = trails(lambda: Attention(of_heads))
    assert found == [[here(line_of(of_heads, 1)), here(line_of(turned, 1))]]


def test_a_layer_of_other_sizes_is_at_the_line_that_makes_it() -> None:
    found = trails(lambda: Attention(lambda module, x: module.gate(module.project(x)), WIDTH // 2))
    assert found == []  # a width alone that comes out is nothing that raises
    found = trails(lambda: Attention(of_a_layer, WIDTH // 2))
    line = Attention.__init__.__code__.co_firstlineno + 3
    assert here(line) in [place for trail in found for place in trail]


def test_an_index_is_followed_by_its_values() -> None:
    found = trails(lambda: Attention(of_ranks))
    assert [here(line_of(of_ranks, 1)), here(line_of(of_ranks, 2))] in found


@pytest.mark.parametrize("mix", [of_its_own, lambda module, x: x])
def test_nothing_is_said_where_no_function_of_torch_raises(mix: Callable[[Attention, Tensor], Tensor]) -> None:
    assert trails(lambda: Attention(mix)) == []


def test_the_line_that_calls_what_raises_is_named_and_nothing_outside_of_the_subject() -> None:
    mixing = Attention.forward.__code__.co_firstlineno + 2
    assert origin(lambda: Attention(of_its_own)).called_at.line == mixing
    assert str(origin(lambda: Attention(of_its_own))) == f", called at test_raised_origin.py:{mixing}"
    assert str(origin(lambda: nn.Linear(WIDTH - 1, WIDTH))) == ""


def test_what_a_step_raises_is_followed_too() -> None:
    def step(module: Attention, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.cat((state, module.project(x)), 1)
        wrong = state.transpose(1, 2)
        return x @ wrong @ x, state

    subject = replace(
        subject_of(lambda: Attention(lambda module, x: module.project(x).cumsum(1))),
        prefill=lambda module, x: (module(x), module.project(x)),
        step=step,
    )
    result = run_check(registry.load("DEC101"), subject)
    found = next(each for each in result.findings if each.code == "FWD101")
    assert f"test_raised_origin.py:{line_of(step, 1)}" in found.message
    assert found.where.line == line_of(step, 2)


class Deeper(nn.Module):
    """Hands its input, which it should project first, on to what is two calls away."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH // 2)
        self.middle = Attention(lambda module, x: module.table[:, : WIDTH // 2] @ x.transpose(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(x)  # here


def test_an_input_that_is_handed_on_as_it_came_is_followed_to_who_does_so() -> None:
    assert [here(Deeper.forward.__code__.co_firstlineno + 1)] in trails(Deeper)


class Holder(nn.Module):
    """Hands a layer what it does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner(None)  # here


class Inner(nn.Module):
    """Cannot be made of nothing."""

    def __init__(self, width: int | None) -> None:
        super().__init__()
        self.scale = width**-0.5  # type: ignore[operator]


def test_who_makes_the_part_that_raises_is_named() -> None:
    measurement = LocalMeasurer(subject_of(Holder)).measure(Point(length=6))
    assert measurement.trouble is not None
    assert (
        f"(called at test_raised_origin.py:{Holder.__init__.__code__.co_firstlineno + 2})"
        in measurement.trouble.message
    )


class UnprintableError(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("not printed")


class Refusing:
    """Something that a function of torch hands the call to, and that raises."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise UnprintableError


@pytest.mark.parametrize(
    "mix",
    [
        lambda module, x: torch.add(module.project(x), Refusing()),
        lambda module, x: torch.add(x, torch.nested.nested_tensor([x[0], x[0, :3]]) * 2),
        lambda module, x: module.project(x).apply_(lambda value: 1 // 0),
    ],
)
def test_what_cannot_be_looked_at_ends_nothing(mix: Callable[[Attention, Tensor], Tensor]) -> None:
    assert len(trails(lambda: Attention(mix))) <= 1


class Deep(nn.Module):
    """Many layers, and a recurrence whose states are stacked, one of them misshapen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(48)])

    def heads(self, x: Tensor, number: int) -> Tensor:
        return x.unflatten(-1, (number, -1))

    def forward(self, x: Tensor) -> Tensor:
        states, state = [], x[:, 0]
        for step in range(x.shape[1]):
            for layer in self.layers:
                state = layer(state).tanh()
            states.append(state if step else state[:, :-1])
        y = torch.stack(states, 1)
        return self.heads(y, 2) + self.heads(y, 4)


class Apart(Deep):
    """The same method, called by two lines."""

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.heads(x, 2)
        fine = self.heads(x, 4)
        return coarse + fine


def test_a_long_pass_is_followed_in_no_time() -> None:
    begun = time.process_time()
    assert origin(Deep, length=24).given
    assert time.process_time() - begun < 10


def test_a_method_is_named_with_who_calls_it() -> None:
    found, method = trails(Apart), Deep.heads.__code__.co_firstlineno + 1
    first = Apart.forward.__code__.co_firstlineno + 1
    assert found == [[here(first), here(method)], [here(first + 1), here(method)]]
