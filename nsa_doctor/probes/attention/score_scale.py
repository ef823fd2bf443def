"""What the scores of attention are multiplied by between the projections and the softmax, and on which lines."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_SCALED = frozenset({"mul", "mul_", "div", "div_"})
_PROJECTIONS = frozenset({"mm", "addmm", "convolution", "embedding"})
_PRODUCTS = frozenset({"bmm", "baddbmm"})
_SOFTMAX = frozenset({"softmax", "safe_softmax"})
_EXPONENTIALS = frozenset({"exp", "exp_"})
_LARGEST = frozenset({"amax", "max", "maximum"})
_NORMS = frozenset({"native_layer_norm", "rms_norm", "fused_rms_norm", "native_group_norm"})
_LENGTHS = frozenset({"linalg_vector_norm", "norm"})
_MEANS = frozenset({"mean", "var", "var_mean"})
_ROOTS = frozenset({"sqrt", "rsqrt"})
_KEEPING = frozenset(  # a factor of what they are given is one of what they give
    {
        *("add", "add_", "sub", "sub_", "rsub", "neg", "neg_", "cat", "stack", "copy_", "clone", "to_copy", "detach"),
        *("view", "unsafe_view", "reshape", "reshape_alias", "transpose", "t", "permute", "slice", "select", "expand"),
        *("unsqueeze", "squeeze", "unbind", "split", "split_with_sizes", "alias", "view_as_real", "view_as_complex"),
        *("repeat", "index_select", "real", "imag", "unsafe_split", "flatten", "unflatten", "as_strided", "mul_"),
        *("index", "gather", "roll", "constant_pad_nd", "tril", "triu", "masked_fill", "masked_fill_", "where", "amax"),
        *("topk", "diagonal", "select_backward", "narrow", "flip", "unfold", "mul"),
    }
)
_TABLES = frozenset({"cos", "sin", "exp", "pow", "reciprocal", "polar", "log", "outer", "arange"})
_HALF = 0.5  # the power that is a root
_FUSED = "scaled_dot_product"


@dataclass(frozen=True)
class Factor:
    """A number that a line multiplies by, `of` the queries, the keys, or else their products.

    `made` is the line that the number comes from, where another hands it on or keeps it. It `is_default` where a call
    scales by itself and is given no number.
    """

    value: float
    place: Place
    made: Place
    of: str = ""
    is_default: bool = False


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of: queries and keys of `size` channels, their product, and what it is multiplied by.

    On the way to it, nothing was divided by its length and no weight was scaled: all that multiplies it, after a norm
    where there is one, is in `factors`, one for each line and for a call's own. `shape` is that of the scores, whose
    last axes are of tokens as a rule. Of several products that are added, `size` is that of the largest, and `in_all`
    the channels of all.
    """

    size: int
    place: Place
    factors: tuple[Factor, ...]
    shape: tuple[int, ...] = ()
    in_all: int = 0

    @property
    def total(self) -> float:
        """The product of all factors."""
        return math.prod(factor.value for factor in self.factors)


@dataclass(frozen=True)
class _State:
    """What is known of one tensor; `is_unknown` where it may be scaled by more than the factors.

    `is_mean` is a mean over channels, and `is_root` a root of one, by which a norm multiplies or divides.
    """

    factors: tuple[Factor, ...] = ()
    size: int = 0
    in_all: int = 0
    place: Place = field(default_factory=Place)
    is_unknown: bool = False
    is_mean: bool = False
    is_root: bool = False


def scores_of(sp: BuiltModule, x: Tensor) -> list[Scores]:
    """Every softmax over products of queries and keys in a pass of which it is known how they are scaled."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, sp.module)
    with torch.no_grad(), watch.watching():
        sp(x)
    return watch.found


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, module: nn.Module) -> None:
        super().__init__()
        self.found: list[Scores] = []
        self._places = places
        self._weights = {memory_of(each) for each in (*module.parameters(), *module.buffers())}
        self._states: dict[tuple[int, int], _State] = {}
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends."""
        with self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what its result is scaled by."""
        name = operation_name(func)
        states = [self._state(tensor) for tensor in tensors_in(args, kwargs)]
        result = func(*args, **kwargs)
        if name.startswith(_FUSED):
            self._see_fused(args, kwargs)
            return result
        if name in _SOFTMAX or (name in _EXPONENTIALS and self._state(args[0]).size):  # by hand, over pieces of keys
            self._see(self._state(args[0]), tuple(args[0].shape))
            return result
        state = self._after(name, args, kwargs, states)
        for tensor in tensors_in(result):
            self._states[_key(tensor)] = state
            self._alive.append(tensor)
        return result

    def _after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], states: Sequence[_State]) -> _State:
        if name in _NORMS or (name in _SCALED and any(state.is_root for state in states)):
            return _State()  # as large as any that was not scaled
        if name in _MEANS:
            return _State(is_mean=True)
        is_power = name == "pow" and not isinstance(args[1], Tensor) and abs(args[1]) == _HALF
        if name in _LENGTHS or name in _ROOTS or is_power:
            is_root = name not in _LENGTHS and any(state.is_mean for state in states)
            return _State(is_root=is_root, is_unknown=not is_root)
        if name in _SCALED and (number := _number(args[1])) is not None and number not in (0, 1):
            factor = self._factor(1 / number if name.startswith("div") else number)
            state = self._state(args[0])
            return replace(state, factors=(*state.factors, factor))
        is_weighed = any(memory_of(tensor) in self._weights for tensor in tensors_in(args))
        if name in _PROJECTIONS or (name in _PRODUCTS and is_weighed):
            return _State(is_unknown=any(state.factors for state in states[-1:]))  # scaled weights
        if name in _PRODUCTS:
            alpha = kwargs.get("alpha", 1)
            more = () if alpha == 1 else (self._factor(float(alpha)),)
            queries, keys = args[1:3] if name == "baddbmm" else args[:2]
            first, second = self._state(queries), self._state(keys)
            unknown = first.is_unknown or second.is_unknown
            factors = (*_of(first, "query"), *_of(second, "key"), *more)
            size = keys.shape[-2]
            return _State(factors, size, size, self._places.here()[0], unknown)
        if name in _LARGEST and any(state.size for state in states):
            return _State()  # of scores, from which it is taken before their exponentials are
        known = _joined(self._turned(name, args) or states)
        if kwargs.get("alpha", 1) != 1 and known.size:
            return replace(known, is_unknown=True)  # as many times what is added
        if name in _SCALED and known.size and is_weighed:
            return replace(known, is_unknown=True)  # a temperature for each head
        if name in ("add", "add_") and args[0] is not args[1]:
            known = replace(known, in_all=sum(state.in_all for state in states))
        if name in _KEEPING:
            return known
        if name in _TABLES:  # angles are products too, of positions and frequencies
            return _State()
        return replace(known, is_unknown=bool(known.size or known.factors or known.is_unknown))

    def _turned(self, name: str, args: tuple[Any, ...]) -> list[_State]:
        """Of products of queries and keys that are taken from what is none, or from nothing: their sign is another."""
        which = {"neg": 0, "neg_": 0, "rsub": 0, "sub": 1, "sub_": 1}.get(name)
        state = _State() if which is None else self._state(args[which])
        if which is not None and any(self._state(each).size for each in args[:2] if each is not args[which]):
            return []  # a product less another is one
        return [replace(state, factors=(*state.factors, self._factor(-1)))] if state.size else []

    def _factor(self, value: float) -> Factor:
        return Factor(value, self._places.here()[0], self._places.of_number(value))

    def _see_fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        query, key = (self._state(each) for each in args[:2])
        place, size, scale = self._places.here()[0], args[0].shape[-1], kwargs.get("scale")
        own = replace(self._factor(size**-0.5 if scale is None else float(scale)), is_default=scale is None)
        factors = () if own.value == 1 else (own,)
        unknown = query.is_unknown or key.is_unknown
        shape = (*args[0].shape[:-1], args[1].shape[-2])
        self._see(_State((*_of(query, "query"), *_of(key, "key"), *factors), size, size, place, unknown), shape)

    def _see(self, state: _State, shape: tuple[int, ...]) -> None:
        if state.size and not state.is_unknown:
            by_line: dict[tuple[str, bool], list[Factor]] = defaultdict(list)
            for factor in state.factors:
                by_line[factor.place.line_text, factor.is_default].append(factor)
            merged = (replace(all_[0], value=math.prod(one.value for one in all_)) for all_ in by_line.values())
            self.found.append(Scores(state.size, state.place, tuple(merged), shape, state.in_all))

    def _state(self, value: Any) -> _State:
        return self._states.get(_key(value), _State()) if isinstance(value, Tensor) else _State()


def _of(state: _State, which: str) -> tuple[Factor, ...]:
    return tuple(replace(factor, of=which) for factor in state.factors)


def _joined(states: Sequence[_State]) -> _State:
    """What an operation makes of several: that of the one which is scaled, where they do not disagree."""
    known = [state for state in states if state.factors or state.size or state.is_unknown]
    if not known:
        return _State(is_mean=any(state.is_mean for state in states), is_root=any(state.is_root for state in states))
    alike = {tuple(sorted(factor.value for factor in state.factors)) for state in known}
    largest = max(known, key=lambda state: (state.size, len(state.factors)))
    unknown = len(alike) > 1 or any(state.is_unknown for state in known)
    return replace(largest, is_unknown=unknown)


def _number(value: Any) -> float | None:
    """A plain number, or a tensor of one; None for others."""
    if isinstance(value, Tensor):
        is_one = value.numel() == 1 and not value.is_complex()
        return float(value) if is_one else None
    return float(value) if isinstance(value, Real) else None


def _key(tensor: Tensor) -> tuple[int, int]:
    """Tells views of one piece of memory apart by where they begin."""
    return memory_of(tensor), int(tensor.storage_offset()) if tensor.layout == torch.strided else 0
