"""The gated mix of the branches, fast: any device and dtype."""

from torch import Tensor

from nsa.ops.tiles import accumulation_dtype
from nsa.types import GateWeights, Output


def mix(compressed: Output, selected: Output, sliding: Output, gates: GateWeights) -> Output:
    """Σ over branches of gate · output (Eq. 5); head j belongs to group j // (H/G)."""
    groups = gates.shape[2]
    weights = gates.to(accumulation_dtype(compressed.dtype))[..., None, None]  # [B, T, G, 3, 1, 1]

    def grouped(x: Tensor) -> Tensor:
        return x.unflatten(2, (groups, -1))

    mixed = grouped(compressed) * weights[:, :, :, 0]
    mixed = mixed + grouped(selected) * weights[:, :, :, 1]
    mixed = mixed + grouped(sliding) * weights[:, :, :, 2]
    return mixed.flatten(2, 3).to(compressed.dtype)
