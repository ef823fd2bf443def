"""Queries and keys that are divided by their lengths, and over which axis, at the product that compares the two.

What a division or a product by something that does not change along an axis makes of equal length along it was divided
by its length there. It is followed through what is done to each element and to the shape, up to a product of matrices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_DIVIDING = frozenset({"div", "div_", "mul", "mul_"})
_OF_FEATURES = frozenset({"native_layer_norm", "fused_rms_norm", "rms_norm"})
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # where the first of the two matrices stands
_ENDING = frozenset(
    {
        *("sum", "mean", "linalg_vector_norm", "norm", "amax", "amin", "max", "min", "var", "std", "prod", "cumsum"),
        *("softmax", "safe_softmax", "log_softmax", "convolution", "embedding", "eq", "gt", "lt", "argmax", "topk"),
    }
)
_ALIKE = 1e-3  # an epsilon beside a mean square
_FEWEST = 8  # lengths
_MOST = 1 << 22  # elements


@dataclass(frozen=True)
class Norm:
    """A tensor of that shape was divided by its length along `axis`, and may have a mean of zero along it."""

    shape: tuple[int, ...]
    axis: int
    place: Place
    is_centred: bool = False

    @property
    def size(self) -> int:
        """How many elements are one in length."""
        return self.shape[self.axis]

    def is_over_rows(self, count: int, channels: int) -> bool:
        """Whether it is over so many rows of such channels, or of those of all heads; what is centred is instances."""
        others = (size for axis, size in enumerate(self.shape) if axis != self.axis)
        return self.size == count and not self.is_centred and any(size % channels == 0 for size in others)


@dataclass(frozen=True)
class AskewPair:
    """Of two that are compared, one was divided by its length over its rows, the other over what both have."""

    over_rows: Norm
    other: Norm


def askew_pairs(sp: BuiltModule, x: Tensor) -> list[AskewPair]:
    """Those of a pass over `x` [B, S, ...], one for a line."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places)
    with torch.no_grad(), watch.watching():
        sp(x)
    return list({each.over_rows.place: each for each in reversed(watch.found)}.values())[::-1]


class _Watch(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: list[AskewPair] = []
        self._places = places
        self._norms: dict[int, tuple[Norm, ...]] = {}
        self._alive: list[Tensor] = []  # or another tensor would get its number

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; attention that torch fuses is taken apart."""
        with sdpa_kernel(SDPBackend.MATH), self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and say of its results what is known of what it was given."""
        result, name = func(*args, **kwargs), operation_name(func)
        with untraced():
            if name in _PRODUCTS:
                self._compare(*args[_PRODUCTS[name] :][:2])
            elif name not in _ENDING:
                self._follow(name, args, kwargs, result)
        return result

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        known = {norm: None for each in tensors_in(args, kwargs) for norm in self._norms.get(id(each), ())}
        results = tensors_in(result)
        axis = None
        if name in _OF_FEATURES:
            results, axis = results[:1], results[0].ndim - 1
        elif name in _DIVIDING and isinstance(result, Tensor):
            axis = _evened(result, args[1])
            axis = _evened(result, args[0]) if axis is None and name == "mul" else axis
        if axis is not None:
            shape, is_centred = tuple(results[0].shape), _is_centred(results[0], axis)
            known[Norm(shape, axis, self._places.here()[0], is_centred)] = None
        for each in results if known else ():
            self._norms[id(each)] = tuple(known)
            self._alive.append(each)

    def _compare(self, left: Tensor, right: Tensor) -> None:
        """Look at a product of [..., rows, channels] and [..., channels, columns]."""
        one, other = self._norms.get(id(left), ()), self._norms.get(id(right), ())
        rows, channels, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        for norms, beside, count in ((one, other, rows), (other, one, columns)):
            is_askew = count != channels and all(each.is_over_rows(count, channels) for each in norms)
            if norms and beside and is_askew and all(each.size == channels for each in beside):
                self.found.append(AskewPair(norms[-1], beside[-1]))


def _evened(result: Tensor, by: object) -> int | None:
    """The axis along which the result is of one length everywhere, where that by which it is divided is the same."""
    if not (isinstance(by, Tensor) and by.is_floating_point() and result.is_floating_point()):
        return None
    if not 0 < result.numel() <= _MOST:
        return None
    strides = torch.broadcast_to(by, result.shape).stride()
    for axis, size in enumerate(result.shape):
        if strides[axis] == 0 and 1 < size < result.numel():
            lengths = torch.linalg.vector_norm(result.double(), dim=axis)
            if lengths.numel() >= _FEWEST and _are_alike(lengths) and not _are_alike(result.abs()):
                return axis
    return None


def _is_centred(tensor: Tensor, axis: int) -> bool:
    return bool((tensor.mean(axis).abs() <= _ALIKE * tensor.square().mean(axis).sqrt()).all())


def _are_alike(values: Tensor) -> bool:
    least, most = values.aminmax()
    return bool(least > 0) and bool(most - least <= _ALIKE * most)
