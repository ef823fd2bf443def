"""Rotary positions of a head's leading channels, with slow frequencies slowed down for longer contexts."""

import math

import torch
from torch import Tensor

from .config import TundraConfig

FAST_TURNS = 4.0
SLOW_TURNS = 1.0


def frequencies(cfg: TundraConfig, like: Tensor) -> Tensor:
    """Radians per token, [rope_dim / 2], in float32 at least.

    What turns at least `FAST_TURNS` times in the original context stays, what turns at most `SLOW_TURNS` times is
    slowed down by the factor, and what lies between is interpolated.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent = torch.arange(0, cfg.rope_dim, 2, device=like.device, dtype=dtype) / cfg.rope_dim
    plain = cfg.rope_base**-exponent
    turns = cfg.rope_original * plain / (2 * math.pi)
    share = ((turns - SLOW_TURNS) / (FAST_TURNS - SLOW_TURNS)).clamp(0, 1)
    return plain * share + plain / cfg.rope_factor * (1 - share)


def turn(position: Tensor, cfg: TundraConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions [B, S], each [B, S, 1, rope_dim / 2]."""
    frequency = frequencies(cfg, like)
    angle = (position.to(frequency.dtype).unsqueeze(-1) * frequency).unsqueeze(-2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rope_dim: int) -> Tensor:
    """[B, S, H, head_dim] with its leading channels rotated; channel i of them goes with channel i + rope_dim / 2."""
    turned, rest = x.split([rope_dim, x.shape[-1] - rope_dim], dim=-1)
    a, b = turned.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)
