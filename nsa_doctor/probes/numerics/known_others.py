"""LayerScale, asked alone: whether what a part of that name gives is its input, scaled by a parameter."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_TIMES = 1.25
_TOLERANCE = 0.02
_SCALES = ("gamma", "scale", "weight")


def departs_from_layer_scale(module: nn.Module, alone: Callable[[Tensor], Tensor], like: Tensor, seed: int) -> str:
    """What shows that it does not multiply each channel by a parameter of its own; empty where it may."""
    parameters = [(name, each) for name, each in module.named_parameters() if each.is_floating_point()]
    if len(parameters) != 1 or parameters[0][0] not in _SCALES or any(True for _ in module.children()):
        return ""
    ((_, scale),) = parameters
    generator = torch.Generator().manual_seed(seed)
    x = (1 + torch.rand(like.shape, generator=generator, dtype=torch.float64)).to(like)
    kept = scale.detach().clone()
    try:
        with torch.no_grad():
            scale.copy_((0.5 + torch.rand(scale.shape, generator=generator, dtype=torch.float64)).to(scale))
            plain, twice = alone(x).double(), alone(2 * x).double()
            scale.mul_(_TIMES)
            larger = alone(x).double()
    finally:
        with torch.no_grad():
            scale.copy_(kept)
    size = float(plain.abs().max())
    if plain.shape != x.shape or not size or not bool(torch.isfinite(plain).all()):
        return ""
    if not float((twice - 2 * plain).abs().max()) <= _TOLERANCE * size:
        return "an input twice as large does not give an output twice as large"
    if bool((larger.abs() <= plain.abs() * (1 - _TOLERANCE)).all()):
        return f"a scale {_TIMES:g} times as large makes its output smaller"
    return ""
