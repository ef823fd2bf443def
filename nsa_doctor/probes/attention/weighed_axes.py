"""Over which axis each softmax of a pass normalises, and over which axes what it weighs is summed.

A tensor that comes of a softmax's weights has a twin of whole numbers, which say of each of its elements which weight
it comes of: what moves the tensor moves the twin, and the twin of a row that is summed tells along which axes of the
weights the row runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import SOFTMAX
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_SHAPING = frozenset(
    {"view", "unsafe_view", "reshape", "reshape_alias", "clone", "detach", "alias", "squeeze", "unsqueeze"}
)
_MOVING = frozenset(
    {
        *("transpose", "t", "permute", "expand", "select", "slice", "narrow", "unbind", "index_select", "flip", "roll"),
        *("split", "split_with_sizes", "unsafe_split", "chunk", "repeat"),
    }
)
_CHANGING = frozenset(  # each element by itself
    {
        *("to_copy", "mul", "mul_", "div", "div_", "add", "add_", "sub", "sub_", "neg", "where"),
        *("masked_fill", "masked_fill_", "nan_to_num", "clamp", "clamp_min", "native_dropout"),
    }
)
_DIVIDING = frozenset({"div", "div_"})
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_ROUNDINGS = 1e3


@dataclass(frozen=True)
class Summed:
    """A sum over one axis of a softmax's weights: its number, its size, and what the weights add up to along it."""

    axis: int
    size: int
    least: float
    most: float


@dataclass
class Weighing:
    """A softmax over `axis` of `weights`, at `place`.

    `summed` is the first sum of what it weighs over the tokens, where it normalises over something else; `is_right`
    where one over its own axis was seen, or where its weights became something else; `is_left` where that came first.
    """

    axis: int
    weights: Tensor
    place: Place
    summed: Summed | None = None
    is_right: bool = False
    is_left: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether its weights are summed over another axis than it normalises over, and never over its own."""
        return self.summed is not None and not self.is_right

    def coordinates(self, codes: Tensor) -> Tensor:
        """Where in the weights these elements come from: [N, axes]."""
        return torch.stack(torch.unravel_index(codes.flatten(), self.weights.shape), dim=1)

    def axes_of(self, codes: Tensor) -> set[int]:
        """The axes of the weights that these elements run along."""
        places = self.coordinates(codes)
        return set((places != places[:1]).any(0).nonzero().flatten().tolist())


@dataclass(frozen=True)
class _Twin:
    """Of which weight each element of a tensor comes.

    `is_summed` where they were summed over an axis that the softmax does not normalise over; `values` is what they were
    multiplied by, one by one, which a sum may follow.
    """

    of: Weighing
    codes: Tensor
    is_summed: bool = False
    values: Tensor | None = None


def weighings(sp: BuiltModule, x: Tensor) -> list[Weighing]:
    """Every softmax of a pass over `x` [B, S, ...], and what its weights are summed over."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, sp.module, x.shape[1])
    with torch.no_grad(), watch.watching():
        sp(x)
    return watch.found


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, module: nn.Module, length: int) -> None:
        super().__init__()
        self.found: list[Weighing] = []
        self._places, self._length = places, length
        self._held = {memory_of(each) for each in (*module.parameters(), *module.buffers())}
        self._twins: dict[int, _Twin] = {}
        self._powers: dict[int, Tensor] = {}
        self._totals: dict[int, tuple[Tensor, Tensor, int]] = {}
        self._alive: list[Tensor] = []  # or another tensor would get its number

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends."""
        with self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and do to the twins of what it is given what it does to that."""
        result, name = func(*args, **kwargs), operation_name(func)
        twins = [twin for each in tensors_in(args, kwargs) if (twin := self._twins.get(id(each))) is not None]
        with untraced():
            axis = self._normalised(name, args, kwargs, result)
            if axis is not None:
                _end(twins)
                self._begin(result, axis)
            elif twins:
                self._follow(name, func, args, kwargs, result, twins)
        return result

    def _normalised(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
        """The axis of a softmax, torch's or one that divides powers of e by their sum; None for another operation."""
        if not isinstance(result, Tensor) or result.ndim == 0:
            return None
        if name in SOFTMAX:
            return int(args[1]) % result.ndim
        if name == "exp":
            self._powers[id(result)] = result
        elif name == "sum" and id(args[0]) in self._powers and (axis := _one_axis(args, kwargs)) is not None:
            self._totals[id(result)] = result, args[0], axis % args[0].ndim
        elif name in _DIVIDING and isinstance(args[1], Tensor) and id(args[1]) in self._totals:
            _, powers, axis = self._totals[id(args[1])]
            return axis if powers is args[0] else None
        return None

    def _begin(self, weights: Tensor, axis: int) -> None:
        if weights.shape[axis] > 1:
            self.found.append(Weighing(axis, weights.detach().clone(), self._places.here()[0]))
            codes = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
            self._know(weights, _Twin(self.found[-1], codes))

    def _know(self, tensor: Tensor, twin: _Twin) -> None:
        if tensor.shape == twin.codes.shape:
            self._twins[id(tensor)] = twin
            self._alive.append(tensor)

    def _follow(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, twins: Sequence[_Twin]
    ) -> None:
        first, *others = twins
        if name in _SHAPING:
            self._know(result, replace(first, codes=first.codes.reshape(result.shape), values=None))
        elif name in _MOVING and id(args[0]) in self._twins:
            moved = func(first.codes, *args[1:], **kwargs)
            for tensor, codes in zip(tensors_in(result), tensors_in(moved), strict=True):
                self._know(tensor, replace(first, codes=codes, values=None))
        elif others or (name in _DIVIDING and _is_of_many(args[1])):
            _end(twins)  # plain weights of one softmax no more, or normalised again
        elif name in _CHANGING:
            self._change(name, args, tensors_in(result)[0], first)
        elif name == "sum" and first.values is not None:
            self._sum(args, kwargs, result, first)
        elif name in _PRODUCTS:
            self._product(args, result, first)

    def _change(self, name: str, args: tuple[Any, ...], result: Tensor, twin: _Twin) -> None:
        codes = twin.codes.expand(result.shape)
        if codes.numel() == twin.codes.numel():
            self._know(result, replace(twin, codes=codes))
        elif name == "mul" and twin.values is None and not twin.is_summed:
            values = next(each for each in tensors_in(args) if id(each) not in self._twins)
            self._know(result, replace(twin, codes=codes, values=values.expand(result.shape)))

    def _sum(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, twin: _Twin) -> None:
        """Of a product one by one over one axis."""
        axis = _one_axis(args, kwargs)
        if twin.values is None or axis is None:
            return
        codes, values = (each.movedim(axis, -1) for each in (twin.codes, twin.values))
        self._add_up(twin.of, codes.flatten(0, -2), values.flatten(0, -2))
        self._know(result, _Twin(twin.of, codes[..., 0].reshape(result.shape), is_summed=True))

    def _product(self, args: tuple[Any, ...], result: Tensor, twin: _Twin) -> None:
        """Of matrices; one with what the module holds mixes heads, or leads out of the layer once tokens are summed."""
        left, right = args[-2:]
        is_left = id(left) in self._twins
        codes, values = (twin.codes, right) if is_left else (twin.codes.mT, left.mT)
        if twin.values is not None or codes.ndim != values.ndim:
            return
        codes, values = (each if each.ndim > 2 else each[None] for each in (codes, values))
        is_held = memory_of(values) in self._held
        if is_held and (twin.is_summed or twin.of.axis in twin.of.axes_of(codes[0, 0])):
            twin.of.is_right = twin.of.is_right or not twin.is_summed
            return
        if not is_held:
            self._add_up(twin.of, codes[:, 0], values[..., 0])
        kept = codes[..., :1].expand(*codes.shape[:-1], values.shape[-1])
        kept = (kept if is_left else kept.mT).reshape(result.shape)
        self._know(result, _Twin(twin.of, kept, is_summed=twin.is_summed or not is_held))

    def _add_up(self, weighing: Weighing, codes: Tensor, values: Tensor) -> None:
        """Note a sum over the last axis of rows of weights and of what they weigh: [rows, summed]."""
        axes = weighing.axes_of(codes[0])
        if weighing.axis in axes:
            weighing.is_right = True
        elif len(axes) == 1 and codes.shape[1] == self._length and weighing.summed is None:
            beside = _beside(weighing, codes[:, 0])
            is_of_tokens = weighing.weights.shape[weighing.axis] == self._length
            if is_of_tokens or (beside is not None and not _is_shifted(values[0], values[beside])):
                (axis,) = axes
                totals = weighing.weights.sum(axis)
                weighing.summed = Summed(axis, codes.shape[1], float(totals.min()), float(totals.max()))


def _end(twins: Sequence[_Twin]) -> None:
    for twin in twins:
        twin.of.is_left |= not twin.of.is_right
        twin.of.is_right = True


def _one_axis(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The one axis that is summed over; None where there are others."""
    asked = args[1] if len(args) > 1 else kwargs.get("dim")
    return int(asked[0]) if isinstance(asked, (list, tuple)) and len(asked) == 1 else None


def _is_of_many(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > 1


def _beside(weighing: Weighing, codes: Tensor) -> int | None:
    """Another row that stands where the first does but along the softmax's axis; None where there is none."""
    apart = weighing.coordinates(codes)
    apart = apart != apart[:1]
    own = apart[:, weighing.axis]
    is_beside = own & (apart.sum(1) == 1)
    return int(is_beside.nonzero()[0]) if bool(is_beside.any()) else None


def _is_shifted(one: Tensor, other: Tensor) -> bool:
    """Whether two rows of values are the same but for a shift: tokens that are assigned to the nearest of centres."""
    apart = other - one
    bound = _ROUNDINGS * torch.finfo(apart.dtype).eps * float(torch.maximum(one.abs(), other.abs()).max())
    return float((apart - apart[0]).abs().max()) <= bound
