"""Queries and keys that a pass turns by the positions of their tokens, and their products that no softmax follows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_LINEAR = frozenset(
    {
        *("add", "add_", "sub", "sub_", "rsub", "neg", "neg_", "cat", "stack", "copy_", "clone", "to_copy", "detach"),
        *("view", "unsafe_view", "reshape", "reshape_alias", "transpose", "t", "permute", "slice", "select", "expand"),
        *("unsqueeze", "squeeze", "unbind", "split", "split_with_sizes", "alias", "view_as_real", "view_as_complex"),
        *("repeat", "index_select", "real", "imag", "unsafe_split", "flatten", "unflatten", "as_strided"),
    }
)
_SCALED = frozenset({"mul", "mul_", "div", "div_"})
_PRODUCTS = frozenset({"mm", "bmm"})
_SOFTMAX = frozenset({"softmax", "safe_softmax", "log_softmax"})
_SINE = 0.02  # what a table in half precision misses a sine by
_SLOWEST = 0.05  # radians a token: where no table turns by more, all may be lines
_ALIKE = 1e4  # in units of the last place

_Part = tuple[tuple[int, ...], int]  # what was turned, and the table that it was multiplied by


@dataclass(frozen=True)
class Turned:
    """A tensor [N, S, D] of equal tokens, each turned by its position, and where the two parts of it are joined."""

    values: Tensor
    place: Place
    parts: frozenset[_Part]

    @property
    def tables(self) -> frozenset[int]:
        """The tables of sines that it was made with."""
        return frozenset(table for _, table in self.parts)

    def is_part_of(self, other: "Turned") -> bool:
        """Whether both are made of one tensor in two ways: then neither is turned by itself."""
        sources = {source for source, _ in self.parts} & {source for source, _ in other.parts}
        return bool(sources) and self.parts != other.parts


@dataclass(frozen=True)
class Product:
    """Scores [N, S, S] of turned queries and keys, and the line that multiplies them."""

    scores: Tensor
    place: Place


@dataclass
class TurnedTensors:
    """What a pass turned: products of two, and pairs of the same shape and tables that no product was made of."""

    products: list[Product] = field(default_factory=list)
    pairs: list[tuple[Turned, Turned]] = field(default_factory=list)


def turned_tensors(sp: BuiltModule, x: Tensor) -> TurnedTensors:
    """Watch a pass of x [1, S, ...] whose projections each give what they give for the first token, for all tokens."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, x.shape[1])
    with torch.no_grad(), watch.watching():
        sp(x)
    return watch.found()


@dataclass
class _State:
    """What is known of one piece of memory."""

    parts: frozenset[_Part] = frozenset()
    products: frozenset[int] = frozenset()
    made: int = 0
    place: Place = field(default_factory=Place)

    @property
    def tables(self) -> frozenset[int]:
        return frozenset(table for _, table in self.parts)


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, length: int) -> None:
        super().__init__()
        self._places, self._length = places, length
        self._states: dict[int, _State] = {}
        self._alive: list[Tensor] = []  # or memory would be given to another tensor
        self._tables: dict[int, Tensor] = {}
        self._ended: dict[frozenset[_Part], tuple[Turned, int, list[int]]] = {}
        self._products: list[tuple[Product, tuple[frozenset[_Part], ...]]] = []
        self._weighed: set[int] = set()
        self._index = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; attention that torch fuses is taken apart."""
        with sdpa_kernel(SDPBackend.MATH), self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it does with what is turned; a projection gives the same for all tokens."""
        self._index += 1
        name = operation_name(func)
        result = func(*args, **kwargs)
        if name in ("mm", "addmm", "bmm") and self._projects(*args[-2:]):
            result = result[..., :1, :].expand_as(result).clone()
        given = tensors_in(args, kwargs)
        states = [state for each in given if (state := self._states.get(memory_of(each))) is not None]
        if states:
            self._follow(name, given, states, result)
        elif name in ("mul", "mul_") and len(given) == 2 and isinstance(result, Tensor):
            self._turn(given, result)
        return result

    def found(self) -> TurnedTensors:
        """What was turned, without what makes one turned tensor together with another."""
        ended = list(self._ended.values())
        halves = {one.parts for one, *_ in ended for other, *_ in ended if one.is_part_of(other)}
        products = [
            product
            for index, (product, parts) in enumerate(self._products)
            if index not in self._weighed and not halves & set(parts)
        ]
        multiplied = {parts for _, each in self._products for parts in each}
        whole = [each for each in ended if each[0].parts not in halves | multiplied]
        pairs = [
            (one, other)
            for (one, made, used), (other, later, read) in combinations(whole, 2)
            if one.tables == other.tables
            and one.values.shape == other.values.shape
            and max(made, later) < min([*used, *read], default=self._index)
        ]
        return TurnedTensors(products, pairs)

    def _projects(self, rows: Tensor, weight: Tensor) -> bool:
        is_of_tokens = rows.shape[-2] == self._length and self._length not in (rows.shape[-1], weight.shape[-1])
        return is_of_tokens and rows.shape[-1] > 1 and (rows.ndim < 3 or len(rows) == 1)

    def _turn(self, given: list[Tensor], result: Tensor) -> None:
        """Note a product of a tensor that is the same for all tokens and a table of sines of their positions."""
        for rows, table in (given, given[::-1]):
            kind = self._sines(table, result)
            if kind and self._is_alike(rows, result):
                source = (memory_of(rows), rows.storage_offset(), *rows.shape, *rows.stride())
                self._alive.append(rows)
                parts = frozenset((source, each) for each in kind)
                self._keep(result, _State(parts, made=self._index, place=self._places.here()[0]))
                return

    def _follow(self, name: str, given: list[Tensor], states: list[_State], result: Any) -> None:
        parts = frozenset[_Part]().union(*(state.parts for state in states))
        weighed = frozenset[int]().union(*(state.products for state in states))
        if name in _SOFTMAX:
            self._weighed |= weighed
            return
        is_linear = name in _LINEAR or (name in _SCALED and sum(each.numel() > 1 for each in given) < 2)
        if is_linear and parts:
            last = max(states, key=lambda each: each.made)
            is_joined = all(each.parts < parts for each in states)
            made, place = (self._index, self._places.here()[0]) if is_joined else (last.made, last.place)
            state = _State(parts, weighed, made, place)
            for each in tensors_in(result):
                self._keep(each, state)
            return
        for each in given:
            self._end(name, each)
        if name in _PRODUCTS and len(states) == 2 and all(self._is_turned(state) for state in states):
            self._multiply(states, result)
        elif weighed and name not in _PRODUCTS:
            for each in tensors_in(result):
                self._keep(each, _State(products=weighed))

    def _multiply(self, states: list[_State], result: Tensor) -> None:
        if result.shape[-2:] == (self._length, self._length):
            product = Product(result.detach().clone().flatten(0, -3), self._places.here()[0])
            self._keep(result, _State(products=frozenset({len(self._products)})))
            self._products.append((product, tuple(state.parts for state in states)))

    def _end(self, name: str, tensor: Tensor) -> None:
        """Keep what is turned as it is when something else than its making is done with it."""
        state = self._states.get(memory_of(tensor))
        if state is None or not self._is_turned(state) or tensor.is_complex():
            return
        values = tensor.mT if tensor.shape[-1] == self._length and tensor.ndim > 1 else tensor
        axes = [axis for axis, size in enumerate(values.shape[:-1]) if size == self._length]
        if len(axes) != 1:
            return
        values = values.movedim(axes[0], -2).reshape(-1, self._length, values.shape[-1])
        if bool((values - values[:, :1]).abs().max() <= _alike(values)):
            return
        turned = Turned(values.detach().clone(), state.place, state.parts)
        _, _, used = self._ended.setdefault(state.parts, (turned, state.made, []))
        if name in _PRODUCTS:
            used.append(self._index)

    def _keep(self, tensor: Tensor, state: _State) -> None:
        self._states[memory_of(tensor)] = state
        self._alive.append(tensor)

    def _is_turned(self, state: _State) -> bool:
        """Whether it is made with two tables, one of which turns by more than a line would."""
        columns = [self._tables[table] for table in state.tables]
        slowest = 2 * math.cos(_SLOWEST)
        return len(columns) > 1 and any(
            bool(((_turns(each) < slowest) & (each.abs().amax(0) > _SINE)).any()) for each in columns
        )

    def _is_alike(self, rows: Tensor, result: Tensor) -> bool:
        axis = self._axis(rows, result)
        if axis is None or not rows.numel() or not (rows.is_floating_point() or rows.is_complex()):
            return False
        apart = (rows - rows.select(axis, 0).unsqueeze(axis)).abs().max()
        return bool(apart <= _alike(rows)) and bool(rows.abs().max() > 0)

    def _sines(self, table: Tensor, result: Tensor) -> tuple[int, ...]:
        """The numbers of the tables that it is, two of them if it is complex; none if it is no table of sines."""
        axis = self._axis(table, result)
        if axis is None:
            return ()
        columns = table.detach().movedim(axis, 0).reshape(self._length, -1)
        parts = (columns.real, columns.imag) if table.is_complex() else (columns,)
        if not all(each.is_floating_point() and are_sines(each.double()) for each in parts):
            return ()
        return tuple(self._number(each.double()) for each in parts)

    def _axis(self, tensor: Tensor, result: Tensor) -> int | None:
        """Where the tokens of it lie: the only dimension with as many entries, in it and in the result."""
        axes = [axis - tensor.ndim for axis, size in enumerate(tensor.shape) if size == self._length]
        return axes[0] if len(axes) == 1 and result.shape[axes[0]] == self._length else None

    def _number(self, columns: Tensor) -> int:
        for number, known in self._tables.items():
            if known.shape == columns.shape and bool(((known - columns).abs() <= 1e-9).all()):
                return number
        self._tables[len(self._tables)] = columns.clone()
        return len(self._tables) - 1


def are_sines(columns: Tensor) -> bool:
    """Whether each column [S, N] goes up and down as a sine does, however slowly."""
    if columns.shape[0] < 3 or not columns.numel() or not bool(torch.isfinite(columns).all()):
        return False
    between, beside = columns[1:-1], columns[2:] + columns[:-2]
    factor = _turns(columns)
    misses = (beside - factor * between).abs().amax(0)
    largest = columns.abs().amax(0)
    is_sine = (misses <= _SINE * largest.clamp_min(_SINE * largest.max())) & (factor.abs() <= 2 + _SINE**2)
    return bool(is_sine.all()) and bool((columns != columns[:1]).any())


def _turns(columns: Tensor) -> Tensor:
    """Twice the cosine of the angle that each column [S, N] of sines turns by from a token to the next, [N]."""
    between, beside = columns[1:-1], columns[2:] + columns[:-2]
    return (between * beside).sum(0) / between.square().sum(0).clamp_min(1e-300)


def _alike(values: Tensor) -> Tensor:
    return _ALIKE * torch.finfo(values.dtype).eps * values.abs().max()
