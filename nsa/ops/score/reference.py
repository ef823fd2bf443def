"""Block importance one equation at a time (arXiv 2502.11089, Eq. 9 and 10): right on the CPU in float64, not fast."""

import torch
from jaxtyping import Float
from torch import Tensor

from nsa.ops.geometry import Geometry

Probabilities = Float[Tensor, "B T H C"]
HeadImportance = Float[Tensor, "B T H num_blocks"]
Importance = Float[Tensor, "B T G num_blocks"]


def block_importance(probabilities: Probabilities, num_groups: int, num_blocks: int, geometry: Geometry) -> Importance:
    """Eq. 10: the importance of each selection block, summed over the heads of a group, so that they choose as one."""
    per_head = head_importance(probabilities, num_blocks, geometry)
    grouped: Tensor = per_head.unflatten(2, (num_groups, -1))  # [B, T, G, h, num_blocks]
    return grouped.sum(3)


def head_importance(probabilities: Probabilities, num_blocks: int, geometry: Geometry) -> HeadImportance:
    """Eq. 9: for each head, p_slc[j] = Σ_m Σ_n p_cmp[(l'/d)·j + m − n], 0 <= m < l'/d, 0 <= n < l/d.

    The paper prints the index as −m−n and means the overlap, which m − n counts: a compressed block once for every
    stride it shares with block j. Terms with an index outside the compressed blocks are zero; so are, in
    `probabilities` itself, those of blocks the query does not see.
    """
    strides_per_selection, strides_per_compressed = geometry.l_sel // geometry.d, geometry.l // geometry.d
    num_compressed = probabilities.shape[-1]
    wide = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    importance = []
    for j in range(num_blocks):
        total = wide.new_zeros(wide.shape[:-1])
        for m in range(strides_per_selection):
            for n in range(strides_per_compressed):
                index = strides_per_selection * j + m - n
                if 0 <= index < num_compressed:
                    total = total + wide[..., index]
        importance.append(total)
    return torch.stack(importance, dim=-1)
