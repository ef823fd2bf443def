"""Finds, by forward passes alone, a length from which on a line loses a gradient that no shorter input has it lose."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule

_FARTHEST = (1029, 521)  # beyond 1024, and beyond 512
_MOST_CALLS, _MOST_PRODUCTS = 20_000, 1e10  # of torch, and of parameters by tokens: about a second's worth of each
_FURTHER = 8  # tokens after the first that loses it, for the loss to be felt


def length_that_loses_more(sp: BuiltModule, known: int) -> int | None:
    """A length, little beyond the first at which some line loses a gradient that none loses at the `known` length.

    None where no line does, or where so long a pass is too much work to be tried.
    """
    before = _losses(sp, known)
    if before is None:
        return None
    num_values = sum(parameter.numel() for parameter in sp.module.parameters())
    for length in _FARTHEST:
        length = min(length, sp.subject.max_length)
        if length <= known or before.num_calls * length / known > _MOST_CALLS or num_values * length > _MOST_PRODUCTS:
            continue
        after = _losses(sp, length)
        if after is None:
            continue
        if not after.lines - before.lines:
            return None
        least = known
        while length - least > 1:
            middle = (least + length) // 2
            found = _losses(sp, middle)
            is_more = found is not None and bool(found.lines - before.lines)
            least, length = (least, middle) if is_more else (middle, length)
        return min(length + _FURTHER, sp.subject.max_length)
    return None


class _Losses(TorchFunctionMode):
    """The lines at which what wants a gradient makes values that have none; the base class is torch's."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.lines: set[tuple[Place, str]] = set()
        self.num_calls = 0
        self._places = places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call and look at what it made."""
        self.num_calls += 1
        had = any(isinstance(each, Tensor) and each.requires_grad for each in args)
        result = func(*args, **(kwargs or {}))
        if had and isinstance(result, Tensor) and result.is_floating_point() and not result.requires_grad:
            self.lines.add((self._places.here()[0], getattr(func, "__name__", "")))
        return result


def _losses(sp: BuiltModule, length: int) -> _Losses | None:
    """One forward pass with gradients; None where it raises."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Losses(places)
    x = sp.input(length)
    try:
        with torch.enable_grad(), uncompiled(), places.watching():
            given = x.requires_grad_(x.is_floating_point()).clone()
            with watch:
                sp.call(given)
    except SubjectFailedError:
        return None
    return watch
