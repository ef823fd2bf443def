"""Softmax and LayerScale, asked alone: whether what a part of that name gives is that, whatever its axis is."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_TIMES = 1.25
_TOLERANCE = 0.02
_FEWEST = 3


def departs_from_softmax(alone: Callable[[Tensor], Tensor], like: Tensor, seed: int) -> str:
    """What shows that the values it gives are no exponentials, scaled along an axis; empty where they may be.

    The temperature is free, and so is what a row adds up to: one may be added below.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    answer, x = alone(x).double(), x.double()
    if not bool(torch.isfinite(answer).all()) or not bool(answer.any()):
        return ""
    if bool((answer < 0).any()):
        return f"it gives {float(answer.min()):.3g}, and a share is not below zero"
    seen = answer > 0  # a mask of its own may hide others
    logs = torch.where(seen, answer.clamp(min=1e-300).log(), 0.0)
    least = float("inf")
    for axis in range(x.ndim):
        counts = seen.sum(axis, keepdim=True)
        if int(counts.max()) < _FEWEST:
            continue
        centred = torch.where(seen, x - (x * seen).sum(axis, keepdim=True) / counts.clamp(min=1), 0.0)
        moved = torch.where(seen, logs - logs.sum(axis, keepdim=True) / counts.clamp(min=1), 0.0)
        steepness = float((centred * moved).sum() / centred.square().sum())
        left = (moved - steepness * centred).square().mean().sqrt() / centred.square().mean().sqrt()
        least = min(least, float(left) if steepness > 0 else float("inf"))
    if least == float("inf") and max(like.shape, default=0) < _FEWEST:
        return ""
    return "" if least <= _TOLERANCE else "along no axis do its values grow as exponentials of what it is given"


def departs_from_layer_scale(module: nn.Module, alone: Callable[[Tensor], Tensor], like: Tensor, seed: int) -> str:
    """What shows that it does not multiply each channel by a parameter of its own; empty where it may."""
    parameters = [each for each in module.parameters() if each.is_floating_point()]
    if len(parameters) != 1 or any(True for _ in module.children()):
        return ""
    (scale,) = parameters
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
