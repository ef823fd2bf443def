"""Rotary position embedding with tables that grow on demand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .utils import compute_dtype


class Rotary(nn.Module):
    """Rotates the first `rotary_dim` channels of a head by its position, half against half.

    Tables are made in float64 and kept per device and dtype. They are no buffers: `module.bfloat16()` would round
    the angles, which are far apart in bfloat16 beyond position 256.
    """

    def __init__(self, head_dim: int, rotary_dim: int, base: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.base = base
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def _build(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # Tables made inside of inference_mode could not be used in training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            half = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64, device=device)
            frequency = self.base ** (-half / self.rotary_dim)
            position = torch.arange(length, dtype=torch.float64, device=device)
            angle = position[:, None] * frequency
            return angle.cos().to(dtype), angle.sin().to(dtype)

    def tables(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine for at least `length` positions."""
        key = (device, dtype)
        found = self._tables.get(key)
        if found is None or found[0].shape[0] < length:
            size = max(64, 1 << (length - 1).bit_length())
            found = self._build(size, device, dtype)
            self._tables[key] = found
        return found

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Rotate x [..., T, D] at `positions` [T], all of them below `longest`."""
        wide = compute_dtype(x.dtype)
        cos, sin = self.tables(longest, x.device, wide)
        cos, sin = cos[positions], sin[positions]
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        first, second = turned.to(wide).chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
        if rest.shape[-1] == 0:
            return turned
        return torch.cat((turned, rest), dim=-1)
