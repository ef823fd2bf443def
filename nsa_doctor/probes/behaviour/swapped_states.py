"""Cells of a recurrence that are given their state in the place of the input, and the input in that of the state."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import memory_of, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST = 2  # calls that read the answer of the one before as their input, and something else as their state
_CARRIED = 0.25  # of the derivative by the answer, that the same channel's is where a state goes on from it
_MOST_ROWS, _MOST_ASKED = 24, 8


@dataclass(frozen=True)
class Swapped:
    """A cell, the line of its calls, and how many of all its calls are so."""

    name: str
    place: Place
    num_swapped: int
    num_calls: int


@dataclass
class _Call:
    given: Tensor
    state: Tensor | None
    place: Place
    answer: Tensor | None = None


@dataclass
class _Cell:
    name: str
    module: nn.Module
    calls: list[_Call] = field(default_factory=list)


def cells_of(module: nn.Module) -> dict[str, nn.Module]:
    """Cells whose input and state are of one size, by their names; of others the two cannot be exchanged."""
    cells = {name: each for name, each in module.named_modules() if isinstance(each, nn.RNNCellBase)}
    return {name: each for name, each in cells.items() if each.input_size == each.hidden_size}


def swapped_states(sp: BuiltModule, x: Tensor, other: Tensor) -> tuple[int, list[Swapped]]:
    """The most calls of one cell, and those whose input comes of its answer before, and whose state does not.

    A state is something else where it is the answer of no call before, moves with none, and is another for `other`
    input: what begins a layer is the same for both, or may be any later layer's answer.
    """
    x = x.clone().requires_grad_(x.is_floating_point())
    cells, beside = _called(sp, x), {each.name: each for each in _called(sp, other)}
    judged = (_judged(cell, beside[cell.name], x) for cell in cells)
    return max((len(each.calls) for each in cells), default=0), [each for each in judged if each is not None]


def _called(sp: BuiltModule, x: Tensor) -> list[_Cell]:
    """The cells with all that they were given in one pass for x, and how autograd leads from one to another."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    cells = [_Cell(name, module) for name, module in cells_of(sp.module).items()]
    handles = [handle for each in cells for handle in _watched(each, places)]
    try:
        with torch.enable_grad(), unobserved(), uncompiled(), places.watching():
            sp(x)
    finally:
        for handle in handles:
            handle.remove()
    return cells


def _watched(cell: _Cell, places: Places) -> Iterator[Any]:
    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = [*args, *(kwargs[name] for name in ("input", "hx") if name in kwargs), None, None]
        given, state = values[0], _first(values[1])
        if isinstance(given, Tensor):
            place, is_own = places.here()
            cell.calls.append(_Call(given, state, place if is_own else Place()))

    def after(_module: nn.Module, _args: Any, answer: Any) -> None:
        if cell.calls and cell.calls[-1].answer is None:
            cell.calls[-1].answer = _first(answer)

    yield cell.module.register_forward_pre_hook(before, with_kwargs=True)
    yield cell.module.register_forward_hook(after)


def _first(value: Any) -> Tensor | None:
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return first if isinstance(first, Tensor) else None


def _judged(cell: _Cell, beside: _Cell, x: Tensor) -> Swapped | None:
    """The cell with a place, where calls are swapped and none goes on from an earlier answer."""
    asked: list[tuple[_Call, Tensor, list[Tensor]]] = []
    for index, call in enumerate(cell.calls[1:], start=1):
        earlier = [each.answer for each in cell.calls[:index] if each.answer is not None]
        if call.state is None or not earlier:
            continue
        if any(_goes_on(call.state, answer) for answer in earlier):
            return None
        if _is_of_input(call, beside, index):
            asked.append((call, call.state, earlier))
    same = [each for each in asked if _is_same(each[0].given, each[2][-1])]
    swapped = same or [each for each in asked[:_MOST_ASKED] if _carried(each[0].given, each[2][-1]) > _CARRIED]
    if len(swapped) < _FEWEST:
        return None
    for _, state, answers in swapped[:_MOST_ASKED]:
        if not _carried(state, answers[-1]) <= _CARRIED or not _reads_anew(state, answers, x):
            return None
    place = next((call.place for call, *_ in swapped if call.place.file), None)
    if place is None:
        return None
    named = replace(place, module=cell.name, module_class=type(cell.module).__name__)
    return Swapped(cell.name, named, len(swapped), len(cell.calls))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two are one tensor, perhaps of another shape: by memory, or by values that are not all one."""
    if one.numel() != other.numel() or one.numel() < 2:
        return False
    if memory_of(one) == memory_of(other):
        return True
    first, second = one.detach().flatten(), other.detach().flatten()
    return torch.equal(first, second.to(first)) and bool((first != first[0]).any())


def _goes_on(state: Tensor, answer: Tensor) -> bool:
    """Whether a state is an earlier answer, or has rows of it, as behind a mask."""
    if _is_same(state, answer):
        return True
    if state.shape[-1] != answer.shape[-1]:
        return False
    rows, known = (each.detach().flatten(0, -2) for each in (torch.atleast_2d(state), torch.atleast_2d(answer)))
    alike = (rows[:, None] == known.to(rows)[None]).all(-1) & known.ne(0).any(-1)
    return bool(alike.any())


def _is_of_input(call: _Call, beside: _Cell, index: int) -> bool:
    """Whether the state is another for another input, as what begins a layer is not."""
    if index >= len(beside.calls):
        return False
    state, other = call.state, beside.calls[index].state
    return state is not None and other is not None and not _is_same(state, other)


def _carried(value: Tensor, answer: Tensor) -> float:
    """How far a value moves as the answer does, channel by channel, as what was added to it or normalised does.

    The mean share that the diagonal has in some rows of its derivative; NaN where autograd cannot say.
    """
    if not answer.requires_grad or value.numel() != answer.numel():
        return math.nan
    if not value.requires_grad:
        return 0.0
    values, shares = value.flatten(), []
    for index in range(0, len(values), -(-len(values) // _MOST_ROWS)):
        slope = attempt(lambda index=index: _slope(values[index], answer))
        if isinstance(slope, Caught):
            return math.nan
        if slope is None:
            return 0.0
        row = slope.flatten()
        shares.append(float(row[index] / row.norm()) if bool(row.any()) else 0.0)
    return abs(sum(shares)) / len(shares)


def _slope(number: Tensor, answer: Tensor) -> Tensor | None:
    """The derivative of a number by an answer, or None where it does not depend on it."""
    slopes: Sequence[Tensor | None] = torch.autograd.grad(number, answer, retain_graph=True, allow_unused=True)
    return slopes[0]


def _reads_anew(state: Tensor, answers: list[Tensor], x: Tensor) -> bool:
    """Whether the input bears on a state otherwise than by the answers."""
    if not state.requires_grad:
        return not x.is_floating_point()  # as of the ids themselves
    stops = {answer.grad_fn for answer in answers}
    waiting, seen = [state.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node in stops:
            continue
        seen.add(node)
        is_input = "Embedding" in node.name() or "Index" in node.name() if not x.is_floating_point() else False
        if is_input or getattr(node, "variable", None) is x:
            return True
        waiting += [each for each, _ in node.next_functions]
    return False
