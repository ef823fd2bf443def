"""In which precision a subject really computes, and how far rounding alone moves its output."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule

_NUM_PERTURBATIONS = 3
_SAFETY = 8.0


@dataclass(frozen=True)
class Precision:
    """The lowest precision values pass through on their way, as its unit roundoff, and where they are lowered."""

    dtype: torch.dtype
    place: Place

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number."""
        return float(torch.finfo(self.dtype).eps)


def effective_precision(built: BuiltModule, length: int) -> Precision:
    """Watch one forward pass for casts to a narrower floating dtype; its own dtype when there is none."""
    return precision_of(built, lambda: built(built.input(length)))


def precision_of(built: BuiltModule, run: Callable[[], object]) -> Precision:
    """The same of any run of the module."""
    places = Places(FrameFilter(built.subject.packages))
    places.know(built.module)
    own = getattr(torch, built.dtype)
    watcher = _CastWatcher(places, own)
    with torch.no_grad(), watcher, places.watching():
        run()
    return Precision(watcher.narrowest, watcher.place)


def noise_floor(built: BuiltModule, x: Tensor, eps: float) -> Tensor:
    """How far each token's output [B, S] moves when every parameter and embedding moves by about one rounding.

    Where a hard choice is nearly tied the floor is as high as the choice matters: compare such tokens with it.
    """
    with torch.no_grad():
        base = built(x).double()
        floor = torch.zeros(base.shape[:2], dtype=torch.float64, device=base.device)
        for index in range(_NUM_PERTURBATIONS):
            moved = _perturbed(built, x, eps, index).double()
            floor = torch.maximum(floor, (moved - base).abs().flatten(2).amax(-1))
    return _SAFETY * floor + least_noise(base, eps)


def least_noise(output: Tensor, eps: float) -> Tensor:
    """What `noise_floor` is at least for this output [B, S, ...]: the rounding of its own values, [B, S]."""
    return _SAFETY * eps * output.double().abs().flatten(2).amax(-1)


class _CastWatcher(DispatchWatcher):
    def __init__(self, places: Places, own: torch.dtype) -> None:
        super().__init__()
        self.narrowest, self.place = own, Place()
        self._places = places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; a result narrower than its floating-point input lowers the precision."""
        result = func(*args, **kwargs)
        given = next((value for value in args if isinstance(value, Tensor) and value.is_floating_point()), None)
        if isinstance(result, Tensor) and result.is_floating_point() and given is not None and result.numel() > 1:
            eps = torch.finfo(result.dtype).eps
            if torch.finfo(given.dtype).eps < eps and eps > torch.finfo(self.narrowest).eps:
                self.narrowest, self.place = result.dtype, self._places.here()[0]
        return result


def _perturbed(built: BuiltModule, x: Tensor, eps: float, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)

    def jitter(value: Tensor) -> Tensor:
        sign = torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1
        return value * (1 + eps * sign)

    kept = [(parameter, parameter.detach().clone()) for parameter in built.module.parameters()]
    try:
        for parameter, value in kept:
            if value.is_floating_point():
                parameter.copy_(jitter(value))
        return built(jitter(x) if x.is_floating_point() else x)
    finally:
        for parameter, value in kept:
            parameter.copy_(value)
