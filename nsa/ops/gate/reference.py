"""The mix one equation at a time (arXiv 2502.11089, Eq. 5): right on the CPU in float64, not fast."""

import torch
from torch import Tensor

from nsa.types import GateWeights, Output


def mix(compressed: Output, selected: Output, sliding: Output, gates: GateWeights) -> Output:
    """Eq. 5: the three branches, each times its weight; head j takes the weights of group j // (H/G)."""
    heads_per_group = compressed.shape[2] // gates.shape[2]
    weights = _wide(gates).repeat_interleave(heads_per_group, dim=2)  # [B, T, H, 3]
    mixed = (
        weights[..., 0:1] * _wide(compressed) + weights[..., 1:2] * _wide(selected) + weights[..., 2:3] * _wide(sliding)
    )
    return mixed.to(compressed.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
