"""Watches one pass for positions that half precision merges.

A whole number beyond 2/eps (256 in bfloat16) may not be a number of the precision. What it should have been is carried
along in float64, through the arithmetic of positions alone, to where it decides something: a comparison, a difference,
an index, the angle of a sine.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_MOVES = frozenset(
    (
        *("view", "unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "select", "transpose"),
        *("permute", "t", "clone", "detach", "alias", "split", "unbind", "stack", "cat", "repeat", "copy"),
        *("to_copy", "add", "sub", "rsub", "mul", "div", "neg", "abs", "mm", "bmm", "lift_fresh"),
        *("constant_pad_nd", "flip", "roll", "narrow", "index", "index_select", "gather", "clamp"),
    )
)
_DECISIONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "sort", "topk", "searchsorted", "bucketize"})
_TURNS = frozenset({"sin", "cos"})
_FEWEST = 64
_APART = 0.5  # numbers that lie more than one apart are off by more than half


@dataclass(frozen=True)
class Merging:
    """What merged positions decide, in words, and where they come from; `half` is the type they merged in."""

    what: str
    place: Place
    half: torch.dtype


def first_merging(sp: BuiltModule, x: Tensor) -> tuple[Merging | None, bool]:
    """Run the module on x and look for a decision taken by merged positions; and whether any are kept in float16."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = _Watcher(places)
    with torch.no_grad(), watcher, places.watching():
        sp(x)
    return watcher.found, watcher.is_in_float16


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: Merging | None = None
        self.is_in_float16 = False
        self._places, self._half = places, torch.bfloat16
        self._exact: dict[int, Tensor] = {}
        self._origin: dict[int, Place] = {}
        self._alive: list[Tensor] = []  # or an id would be given to another

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and again on what its arguments should have been."""
        result = func(*args, **kwargs)
        if self.found is None:
            name = operation_name(func).rstrip("_")
            if name in _TURNS or any(id(tensor) in self._exact for tensor in tensors_in(args, kwargs)):
                self._follow(name, func, args, kwargs, result)
            elif isinstance(result, Tensor) and _is_half(result):
                self.is_in_float16 |= result.dtype == torch.float16 and _is_counted(name, args, result)
                self._begin(name, args, result)
        return result

    def _begin(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        """Positions are made in, or cast to, a precision that has not all of them."""
        if name in ("arange", "linspace"):
            wide = attempt(lambda: getattr(torch, name)(*args, dtype=torch.float64, device=result.device))
            if isinstance(wide, Tensor) and wide.shape == result.shape:
                self._keep(result, wide, self._places.here()[0])
        elif name == "to_copy" and _is_of_positions(args[0], result):
            self._keep(result, args[0].double(), self._places.here()[0])

    def _follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        known = (id(tensor) for tensor in tensors_in(args, kwargs))
        origin = next((self._origin[key] for key in known if key in self._origin), None)
        if name in _TURNS:
            exact = self._exact.get(id(args[0]))
            if (off := _most(args[0], exact)) > _APART:
                what = f"{name} is taken of angles that are off by up to {off:.3g} rad"
                half = args[0].dtype if _is_half(args[0]) else self._half
                self.found = Merging(what, origin or self._places.here()[0], half)
        elif origin is not None and (name in _DECISIONS or name in _MOVES):
            due = attempt(lambda: func(*tree_map(self._wide, args), **tree_map(self._wide, kwargs)))
            if not isinstance(due, Caught):
                self._compare(name, tensors_in(result), tensors_in(due), origin)

    def _compare(self, name: str, results: list[Tensor], due: list[Tensor], origin: Place) -> None:
        for value, exact in zip(results, due, strict=True):
            if value.shape != exact.shape:
                continue
            if value.is_floating_point():
                wrong = _wrong_differences(value, exact) if name in ("sub", "rsub") else 0
                what = f"{wrong:,} of {value.numel():,} differences between positions are wrong"
                self._keep(value, exact, origin)
            else:
                wrong = int((value != exact.to(value.dtype)).sum())
                way = "compared" if name in _DECISIONS else "made whole numbers again"
                what = f"positions that have merged are {way}: {wrong:,} of {value.numel():,} results differ"
            if wrong and self.found is None:
                self.found = Merging(what, origin, self._half)

    def _keep(self, value: Tensor, exact: Tensor, origin: Place) -> None:
        self._half = value.dtype if _is_half(value) else self._half
        self._exact[id(value)], self._origin[id(value)] = exact, origin
        self._alive.append(value)

    def _wide(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
        if id(leaf) in self._exact:
            return self._exact[id(leaf)]
        return leaf.double() if leaf.is_floating_point() else leaf


def _is_half(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize < 4


def _is_counted(name: str, args: tuple[Any, ...], result: Tensor) -> bool:
    """Whether whole numbers, most of them different, come to be of this type."""
    if name not in ("arange", "linspace", "to_copy") or result.numel() < _FEWEST or not bool(result.isfinite().all()):
        return False
    is_whole = bool((result == result.round()).all())
    return is_whole and len(result.unique()) > _FEWEST


def _is_of_positions(source: Tensor, result: Tensor) -> bool:
    """Whether whole numbers are cast, and not all of them survive."""
    if not source.numel() or source.dtype == torch.bool or source.is_complex():
        return False
    least, most = (float(each) for each in source.aminmax())
    if not 2 / torch.finfo(result.dtype).eps < max(-least, most) < 2**24:
        return False
    is_whole = not source.is_floating_point() or bool((source == source.round()).all())
    return is_whole and len(result.unique()) < len(source.unique())


def _most(value: Tensor, exact: Tensor | None) -> float:
    """How far the largest angle is off, or may be where nobody knows what it should be."""
    if not value.numel() or not value.is_floating_point():
        return 0.0
    if exact is not None:
        return float((value.double() - exact).abs().max())
    most = float(value.abs().max())
    if not _is_half(value) or not 1 <= most < math.inf:
        return 0.0
    return torch.finfo(value.dtype).eps * 2.0 ** math.floor(math.log2(most)) / 2


def _wrong_differences(value: Tensor, exact: Tensor) -> int:
    """Differences of whole numbers that are off by half of what they are, or more."""
    if not bool((exact == exact.round()).all()):
        return 0
    off = (value.double() - exact).abs()
    return int(((off >= _APART) & (off >= exact.abs() / 2)).sum())
