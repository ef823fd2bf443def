"""Queries, keys and values made up for an attention that is asked alone."""

import torch
from torch import Tensor

_GROUPS, _PER_GROUP, _D_K, _D_V = 2, 2, 8, 6


def heads(seed: int, length: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal q [1, S, H, Dk], k [1, S, G, Dk] and v [1, S, G, Dv] in float64; q and k times `scale`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int, size: int) -> Tensor:
        return torch.randn(1, length, count, size, generator=generator).double()

    return normal(_GROUPS * _PER_GROUP, _D_K) * scale, normal(_GROUPS, _D_K) * scale, normal(_GROUPS, _D_V)
