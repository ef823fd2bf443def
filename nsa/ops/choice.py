"""The choice of blocks: a function from the compressed branch's probabilities to slots (Eq. 9 to 12)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT, Geometry, every_block
from nsa.ops.score import vectorized as score_vectorized
from nsa.ops.select import vectorized as select_vectorized
from nsa.types import Slots


@dataclass(frozen=True)
class BlockChoice:
    """Called with probabilities [B, T, G, K] of queries first, first + 1 …, gives their slots [B, T, G, n_sel].

    The probabilities are those of the first K compressed blocks, summed over the heads of a group. Queries are counted
    from `first_query`, the position of the first of them all. It keeps nothing: a tile of queries is chosen for alike
    alone and among others.
    """

    geometry: Geometry
    first_query: int

    def __call__(self, probabilities: Tensor, first: int) -> Slots:
        position = self.first_query + first
        num_blocks = self.geometry.num_blocks(position + probabilities.shape[1])
        if num_blocks == 1:  # nothing to choose, and its strides may be far more than there are tokens
            return self.of_first_block(probabilities, probabilities.shape[2])
        num_rows, num_queries, num_groups, _ = probabilities.shape
        if self.geometry.num_dense(position, num_queries) == num_queries:
            return every_block(
                num_rows, range(position, position + num_queries), num_groups, self.geometry, probabilities.device
            )
        importance = score_vectorized.group_importance(probabilities, num_blocks, self.geometry)
        return select_vectorized.choose_slots(importance, self.geometry, position)

    def of_first_block(self, like: Tensor, num_groups: int) -> Slots:
        """Slots of queries [B, T, …] that see no compressed block: younger than l <= l_sel, they have block 0 alone."""
        shape = *like.shape[:2], num_groups, self.geometry.n_sel
        slots = torch.full(shape, EMPTY_SLOT, dtype=torch.int64, device=like.device)
        slots[..., 0].zero_()
        return slots
