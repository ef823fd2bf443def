"""Tensors that a pass multiplies by tables of sines and adds up, and the same done again with other values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.rotated import are_sines
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, tree_map
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments
from nsa_doctor.subject.contract import Subject

_WAVES = {"sin": frozenset({"sin"}), "cos": frozenset({"cos"}), "polar": frozenset({"sin", "cos"})}
_BOTH = _WAVES["polar"]
_VIEWS = frozenset(
    {
        *("view", "unsafe_view", "reshape", "reshape_alias", "transpose", "t", "permute", "slice", "select", "expand"),
        *("unsqueeze", "squeeze", "unbind", "split", "split_with_sizes", "alias", "unsafe_split", "as_strided"),
        *("view_as_real", "view_as_complex", "real", "imag", "detach", "clone", "to_copy", "repeat", "roll", "flip"),
        *("index", "index_select", "constant_pad_nd", "unfold"),
    }
)
_MAKING = frozenset({"empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros", "zero_"})
_JOINING = frozenset({"cat", "stack", "copy_", "complex"})
_ADDING = frozenset({"add", "add_", "sub", "sub_", "addcmul", "addcmul_"})
_SCALING = frozenset({"neg", "neg_", "mul", "mul_", "div", "div_"})
_PRODUCTS = frozenset({"mul", "mul_", "addcmul", "addcmul_"})
_FEWEST_TOKENS = 8

_Parts = frozenset[int]


@dataclass(frozen=True)
class _Step:
    """One linear operation of a pass, by which it can be done again."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    touched: frozenset[int]  # the memory that it made or wrote into


@dataclass(frozen=True)
class _Product:
    """Data that was multiplied by a table: which waves that holds and who took them, where this was seen."""

    data: Tensor
    waves: frozenset[str]
    place: Place | None


@dataclass(frozen=True)
class _Sum:
    """Products that were put together in a tensor, by a step of that number; whether any were added."""

    tensor: Tensor
    number: int
    place: Place
    is_added: bool


@dataclass(frozen=True)
class TableTurn:
    """What a pass makes of a tensor by tables of sines: `again` makes it of another of its shape and strides."""

    source: Tensor
    result: Tensor
    place: Place
    waves: frozenset[str]  # that the tables hold; empty where it was not seen how they came about
    takers: tuple[Place, ...]  # the lines that took them
    again: Callable[[Tensor], Tensor]


def table_turns(subject: Subject, length: int) -> Iterator[TableTurn]:
    """Each of a pass over so many tokens, of one source the whole of what becomes of it."""
    places = Places(FrameFilter(subject.packages))
    watch = _Watch(places)
    with places.watching(), watch:
        sp = comparable_module(subject)
    places.know(sp.module)
    x = sp.input(length)
    watch.begin(x)
    with torch.no_grad(), unobserved(), places.watching(), watch:
        sp(x)
    found: dict[int, tuple[Tensor, _Parts]] = {}
    for parts, each in watch.sums.items():
        source = watch.common_source(parts)
        if each.is_added and source is not None and source.numel() * source.element_size() >= _bytes(each.tensor):
            known = found.get(id(source))
            if known is None or known[1] < parts:
                found[id(source)] = source, parts
    for source, parts in found.values():
        yield watch.turn(source, parts, lambda place: in_subject(place, sp.module))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Watch(DispatchWatcher):
    """Notes the linear operations of a pass, the tables of waves, and what is multiplied by them.

    Tables are known from where the module is built on, by their memory; data by coming of the input.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.sums: dict[_Parts, _Sum] = {}
        self._places = places
        self._is_passing = False
        self._waves: dict[int, tuple[frozenset[str], Place | None]] = {}  # by memory, as is what follows
        self._fed: set[int] = set()
        self._base: dict[int, Tensor] = {}
        self._parts: dict[int, tuple[_Parts, bool]] = {}
        self._products: list[_Product] = []
        self._steps: list[_Step] = []
        self._made: dict[int, int] = {}  # by the tensor itself, as are its parents: after how many steps it was there
        self._parents: dict[int, list[Tensor]] = {}
        self._alive: list[Tensor] = []

    def begin(self, x: Tensor) -> None:
        """From now on it is the pass that is watched, of this input."""
        self._is_passing = True
        self._fed.add(memory_of(x))
        self._alive.append(x)

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note it."""
        name, given = operation_name(func), tensors_in(args, kwargs)
        for each in given:
            self._meet(each)
        result = func(*args, **kwargs)
        written = tensors_in(written_arguments(func, args, kwargs))
        results = [*tensors_in(result), *written]
        is_cast = name == "to_copy" and not given[0].is_floating_point() and not given[0].is_complex()
        is_fed = not is_cast and any(memory_of(each) in self._fed for each in given)
        self._fed.update(memory_of(each) for each in results if is_fed)
        self._alive += results
        self._follow_waves(name, given, results, is_fed=is_fed)
        if self._is_passing and name in _VIEWS | _MAKING | _JOINING | _ADDING | _SCALING:
            touched = frozenset(memory_of(each) for each in results)
            self._steps.append(_Step(func, args, kwargs, result, touched))
            for each in results:
                self._meet(each)
                if name in _VIEWS | _MAKING | _JOINING or _is_scaled(name, given):
                    self._parents.setdefault(id(each), [one for one in given if one is not each])
            for each in written if name == "copy_" else ():
                self._parents.setdefault(id(self._base[memory_of(each)]), []).append(given[1])
            self._follow_parts(name, given, results)
        return result

    def _meet(self, tensor: Tensor) -> None:
        self._made.setdefault(id(tensor), len(self._steps))
        self._base.setdefault(memory_of(tensor), tensor)
        self._alive.append(tensor)

    def _follow_waves(self, name: str, given: list[Tensor], results: list[Tensor], *, is_fed: bool) -> None:
        """Tables are waves of what does not come of the input, and what views and factors make of them."""
        if is_fed:
            for each in results:
                self._waves.pop(memory_of(each), None)
        elif name in _WAVES or (name == "exp" and given[0].is_complex()):
            place = self._places.here()[0]
            self._waves.update((memory_of(each), (_WAVES.get(name, _BOTH), place)) for each in results)
        elif name in _VIEWS | _JOINING | _SCALING:
            known = [waves for each in given if (waves := self._waves.get(memory_of(each))) is not None]
            if known:
                kinds = frozenset[str]().union(*(each for each, _ in known))
                self._waves.update((memory_of(each), (kinds, known[-1][1])) for each in results)

    def _follow_parts(self, name: str, given: list[Tensor], results: list[Tensor]) -> None:
        """Which products each result is put together from."""
        factors = given[-2:] if name in _PRODUCTS and len(given) > 1 else []
        product = self._product(factors, results[0]) if factors else None
        known = [self._parts.get(memory_of(each)) for each in given]
        is_added = name in _ADDING and sum(each is not None for each in known[:2]) > 1
        if product is not None:
            self._products.append(product)
            parts, is_whole = frozenset({len(self._products) - 1}), results[0].is_complex()
            before = known[0] if name.startswith("addcmul") else None
            self._keep(results, parts | (before[0] if before else parts), is_added=is_whole or before is not None)
        elif name in _VIEWS | _JOINING or is_added or _is_scaled(name, given):
            parts = _Parts().union(*(each[0] for each in known if each is not None))
            if parts:
                self._keep(results, parts, is_added=is_added or any(each is not None and each[1] for each in known))
        elif name.endswith("_"):
            for each in results:
                self._parts.pop(memory_of(each), None)

    def _product(self, factors: list[Tensor], result: Tensor) -> _Product | None:
        """What a product of data and a table is, if it is one."""
        for data, table in (factors, factors[::-1]):
            if memory_of(data) in self._fed and memory_of(table) not in self._fed and data.shape == result.shape:
                waves, place = self._waves.get(memory_of(table), (None, None))
                if waves is not None or _holds_sines(table):
                    return _Product(data, waves or frozenset(), place)
        return None

    def _keep(self, results: list[Tensor], parts: _Parts, *, is_added: bool) -> None:
        for each in results:
            memory = memory_of(each)
            before = self._parts.get(memory)
            if before is not None and before[0] < parts:
                self.sums.pop(before[0], None)  # it was not done yet
            self._parts[memory] = parts, is_added
            if parts not in self.sums or (is_added and not self.sums[parts].is_added):
                whole = self._base[memory]
                self.sums[parts] = _Sum(whole, len(self._steps), self._places.here()[0], is_added)

    def common_source(self, parts: _Parts) -> Tensor | None:
        """The last tensor of which all that was multiplied is made, by views, factors and putting together alone."""
        common: dict[int, Tensor] | None = None
        for part in parts:
            above: dict[int, Tensor] = {}
            waiting = [self._products[part].data]
            while waiting:
                each = waiting.pop()
                if id(each) not in above and memory_of(each) in self._fed:
                    above[id(each)] = each
                    waiting += self._parents.get(id(each), [])
            common = above if common is None else {key: each for key, each in common.items() if key in above}
        return max(common.values(), key=lambda each: self._made[id(each)]) if common else None

    def turn(self, source: Tensor, parts: _Parts, of_subject: Callable[[Place], Place]) -> TableTurn:
        """What becomes of that source by those products."""
        known = self.sums[parts]
        products = [self._products[part] for part in sorted(parts)]
        waves = [each.waves for each in products]
        takers = dict.fromkeys(of_subject(each.place) for each in products if each.place is not None)
        steps = self._steps_between(self._made[id(source)], known)
        return TableTurn(
            source=source,
            result=known.tensor,
            place=of_subject(known.place),
            waves=frozenset[str]().union(*waves) if all(waves) else frozenset(),
            takers=tuple(takers),
            again=lambda values: _again(steps, source, known.tensor, values),
        )

    def _steps_between(self, begin: int, known: _Sum) -> list[_Step]:
        """The steps behind the source that the sum is made by."""
        needed, steps = {memory_of(known.tensor)}, list[_Step]()
        for step in reversed(self._steps[begin : known.number]):
            if step.touched & needed:
                steps.append(step)
                needed |= {memory_of(each) for each in tensors_in(step.args, step.kwargs)}
        return steps[::-1]


def _is_scaled(name: str, given: list[Tensor]) -> bool:
    """Whether an operation multiplies one tensor by a number."""
    return name in _SCALING and sum(each.numel() > 1 for each in given) < 2


def _again(steps: list[_Step], source: Tensor, result: Tensor, values: Tensor) -> Tensor:
    """What the steps make of other values."""
    other = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
    known = {id(source): other.copy_(values)}
    replaced = lambda each: known.get(id(each), each) if isinstance(each, Tensor) else each  # noqa: E731
    for step in steps:
        made = step.func(*tree_map(replaced, step.args), **tree_map(replaced, step.kwargs))
        for before, after in zip(tensors_in(step.result), tensors_in(made), strict=True):
            known[id(before)] = after
    return known[id(result)]


def _holds_sines(table: Tensor) -> bool:
    """Whether it goes up and down as sines do, along one of its dimensions before the last."""
    if table.ndim < 2 or not table.is_floating_point():
        return False
    lengths = [axis for axis, size in enumerate(table.shape[:-1]) if size >= _FEWEST_TOKENS]
    rows = (table.detach().movedim(axis, 0).reshape(table.shape[axis], -1).double() for axis in lengths)
    return any(are_sines(each) for each in rows)
