"""Rotary position embedding (arXiv 2104.09864) on neighbouring pairs of channels: 2i and 2i + 1 turn together.

Nothing is stored: the rotation of a position is computed where it is used, with angles in float64, so no table can be
stale, short, or in the wrong dtype, and position 1,000,000 is as exact as position 1.
"""

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from nsa.types import CuSeqlens

Rotation = Complex[Tensor, "T half"]


def rotation(positions: Int[Tensor, " T"], head_size: int, theta: float, dtype: torch.dtype) -> Rotation:
    """exp(i · position · theta^(−2j/head_size)) for each position and channel pair j.

    Complex128 for float64 activations, complex64 for all others.
    """
    pair = torch.arange(0, head_size, 2, dtype=torch.float64, device=positions.device)
    angle = positions[:, None] * theta ** (-pair / head_size)
    turned = torch.polar(torch.ones_like(angle), angle)
    return turned.to(torch.complex128 if dtype == torch.float64 else torch.complex64)


def rotate(x: Float[Tensor, "B T N D"], by: Rotation) -> Float[Tensor, "B T N D"]:
    """Turn the channel pairs of every head; half precision is turned in float32 and rounded once."""
    wide = x.to(by.dtype.to_real())
    pairs = _as_pairs(wide.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by[:, None]).flatten(-2).to(x.dtype)


def packed_positions(cu_seqlens: CuSeqlens, num_tokens: int) -> Int[Tensor, " T"]:
    """Position of each token within its own sequence; no host sync."""
    index = torch.arange(num_tokens, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:], index, right=True)
    return index - cu_seqlens[sequence]


def _as_pairs(x: Tensor) -> Tensor:
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]) or x.stride(-1) != 1:
        x = x.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(x)
