"""Rotary position embedding (arXiv 2104.09864) on neighbouring pairs of channels: 2i and 2i + 1 turn together.

Nothing is stored: the rotation of a position is computed where it is used, with angles in float64, so no table can be
stale, short, or in the wrong dtype, and position 1,000,000 is as exact as position 1.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nsa.types import CuSeqlens


class Rotation(NamedTuple):
    """Cosine and sine of each position's angle, per channel pair."""

    cos: Float[Tensor, "T half"]
    sin: Float[Tensor, "T half"]


def rotation(positions: Int[Tensor, " T"], head_size: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The angle position · theta^(−2j/head_size) of each position and channel pair j.

    float64 for float64 activations, float32 for all others.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    # A compiler that sees through it computes every angle again for every head, in float64.
    turns = _opaque_turns if torch.compiler.is_compiling() else _turns
    return Rotation(*turns(positions, head_size, theta, wide))


def _turns(positions: Tensor, head_size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = positions[:, None] * frequencies(head_size, theta, positions.device)
    return angle.cos().to(dtype), angle.sin().to(dtype)


_opaque_turns = torch.library.custom_op("nsa::turns", _turns, mutates_args=())


@_opaque_turns.register_fake
def _(positions: Tensor, head_size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cos, sin = (positions.new_empty(positions.shape[0], -(-head_size // 2), dtype=dtype) for _ in range(2))
    return cos, sin


def frequencies(head_size: int, theta: float, device: torch.device) -> Float[Tensor, " half"]:
    """What one position adds to the angle of each channel pair, float64."""
    pair = torch.arange(0, head_size, 2, dtype=torch.float64, device=device)
    return theta ** (-pair / head_size)


def rotate(x: Float[Tensor, "B T N D"], by: Rotation) -> Float[Tensor, "B T N D"]:
    """Turn the channel pairs of every head; half precision is turned in float32 and rounded once."""
    even, odd = x.to(by.cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = by.cos[:, None], by.sin[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def packed_positions(cu_seqlens: CuSeqlens, num_tokens: int) -> Int[Tensor, " T"]:
    """Position of each token within its own sequence; no host sync."""
    index = torch.arange(num_tokens, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:], index, right=True)
    return index - cu_seqlens[sequence]
