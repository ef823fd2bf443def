"""Rotary embedding with scaled frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .config import RopeScaling
from .utils import compute_dtype


def frequencies(head_dim: int, base: float, scaling: RopeScaling) -> Tensor:
    """Angular frequency of each pair of channels, in float64."""
    inverse = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling.kind == "none":
        return inverse
    if scaling.kind == "linear":
        return inverse / scaling.factor
    wavelength = 2 * math.pi / inverse
    long_wave = scaling.original_length / scaling.low_frequency
    short_wave = scaling.original_length / scaling.high_frequency
    blend = (scaling.original_length / wavelength - scaling.low_frequency) / (
        scaling.high_frequency - scaling.low_frequency
    )
    between = (1 - blend) * inverse / scaling.factor + blend * inverse
    slowed = torch.where(wavelength > long_wave, inverse / scaling.factor, inverse)
    middle = (wavelength <= long_wave) & (wavelength >= short_wave)
    return torch.where(middle, between, slowed)


class RotaryEmbedding(nn.Module):
    """Cosine and sine for given positions. One instance serves all layers of a model."""

    def __init__(self, head_dim: int, base: float, scaling: RopeScaling) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.base = base
        self.scaling = scaling
        self._frequencies = frequencies(head_dim, base, scaling)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Tables [B or 1, 1, T, D / 2] for positions [B or 1, T], in at least float32."""
        frequency = self._frequencies.to(positions.device)
        angle = positions.to(torch.float64)[..., None] * frequency
        wide = compute_dtype(dtype)
        return angle.cos().to(wide).unsqueeze(1), angle.sin().to(wide).unsqueeze(1)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [B, H, T, D], half against half."""
    cos, sin = tables
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
