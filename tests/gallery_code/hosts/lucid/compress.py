"""From overlapping blocks of keys or values to one vector each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .blocks import num_compressed


class BlockCompressor(nn.Module):
    """Adds a learned position inside of the block, mixes the block's tokens, adds their mean."""

    def __init__(self, head_dim: int, block: int, stride: int) -> None:
        super().__init__()
        self.block = block
        self.stride = stride
        self.position = nn.Parameter(torch.empty(block, head_dim))
        self.mix = nn.Linear(block * head_dim, 2 * head_dim)
        self.down = nn.Linear(2 * head_dim, head_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small positions, the rest by fan-in."""
        nn.init.normal_(self.position, std=0.3)
        for linear in (self.mix, self.down):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, G, S, D] to [B, G, C, D], C whole blocks."""
        batch, groups, length, width = x.shape
        count = num_compressed(length, self.block, self.stride)
        if count == 0:
            return x.new_zeros(batch, groups, 0, width)
        windows = x.unfold(2, self.block, self.stride).transpose(-1, -2)
        placed = windows + self.position
        mixed = self.down(F.gelu(self.mix(placed.flatten(-2))))
        return mixed + windows.mean(-2)
