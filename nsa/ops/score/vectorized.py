"""Importance of selection blocks, fast: any device and dtype; a tile of queries at a time."""

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry


def group_importance(probabilities: Tensor, num_blocks: int, geometry: Geometry) -> Tensor:
    """Importance [..., num_blocks] from probabilities [..., C] already summed over a group's heads (Eq. 9 and 10).

    A compressed block counts once for every stride it shares with a selection block. C may be any number of leading
    compressed blocks: those missing have probability zero.
    """
    per_compressed, per_block = geometry.l // geometry.d, geometry.l_sel // geometry.d
    num_strides = num_blocks * per_block
    strides = torch.zeros(
        *probabilities.shape[:-1], num_strides, dtype=probabilities.dtype, device=probabilities.device
    )
    for offset in range(per_compressed):
        strides[..., offset : offset + probabilities.shape[-1]] += probabilities
    return strides.unflatten(-1, (num_blocks, per_block)).sum(-1)
