"""Rotary positions."""

import torch
from torch import Tensor


def angles(start: int, count: int, dim: int, base: float, like: Tensor) -> Tensor:
    """Angles of consecutive positions, [count, dim / 2], in the dtype of computation."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = base ** (-torch.arange(0, dim, 2, device=like.device, dtype=dtype) / dim)
    position = torch.arange(start, start + count, device=like.device, dtype=dtype)
    return position[:, None] * frequency


def rotate(x: Tensor, start: int, base: float) -> Tensor:
    """[B, S, dim] or [B, S, H, dim] rotated by its positions, the first of which is `start`.

    Pairs are halves: channel i goes with channel i + dim / 2.
    """
    angle = angles(start, x.shape[1], x.shape[-1], base, x)
    if x.dim() == 4:
        angle = angle.unsqueeze(1)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.to(angle.dtype).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
