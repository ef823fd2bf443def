"""A module of your own, which knows nothing of nsa-doctor: `nsa-doctor run --subject module:make`.

make() takes no arguments and returns a new module: that is all nsa-doctor needs. A class that is built without
arguments does as well.
"""

import torch
from torch import nn


class Attention(nn.Module):
    """Causal attention with several heads: [B, S, dim] in, [B, S, dim] out."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # [B, S, 3, H, D]
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(-2))


def make() -> nn.Module:
    """Small, so that an examination takes seconds; of the same geometry as yours, so that it means something."""
    return Attention(dim=32, num_heads=4)
