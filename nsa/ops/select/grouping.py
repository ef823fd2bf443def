"""Groups (query, slot) pairs by the block they read, so that one block serves many queries in one matrix product.

As experts are served in a mixture-of-experts layer: pairs are sorted by block and cut into tiles of equal height. All
sizes are known from shapes alone, so that nothing waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT


@dataclass(frozen=True)
class Grouping:
    """Where each pair went.

    query: query of each tile row, [num_tiles, height]; `num_queries` for a row without one.
    block: block each tile reads, [num_tiles].
    place: row, counted over all tiles, of each query's slots, [num_queries, n]; num_tiles · height for an empty slot.
    """

    query: Tensor
    block: Tensor
    place: Tensor


def group_by_block(blocks: Tensor, num_blocks: int, height: int) -> Grouping:
    """Group the pairs of `blocks` [num_queries, n], each below `num_blocks` or −1, in tiles of `height` rows."""
    num_queries, num_slots = blocks.shape
    num_pairs, device = blocks.numel(), blocks.device
    # A block with c pairs fills ⌈c / height⌉ tiles, at most (c + height − 1) / height.
    num_tiles = (num_pairs + (height - 1) * min(num_pairs, num_blocks)) // height
    nowhere = num_tiles * height

    key, pair = torch.where(blocks == EMPTY_SLOT, num_blocks, blocks).flatten().sort(stable=True)
    first = torch.searchsorted(key, torch.arange(num_blocks + 1, device=device))
    tiles_end = ((first.diff() + height - 1) // height).cumsum(0)
    tiles_start = torch.nn.functional.pad(tiles_end, (1, 0))  # the last entry is for empty slots
    row = tiles_start[key] * height + torch.arange(num_pairs, device=device) - first[key]
    row = torch.where(key == num_blocks, nowhere, row)

    place = torch.empty_like(row).scatter_(0, pair, row)
    query = torch.full((nowhere + 1,), num_queries, device=device).scatter_(0, row, pair // num_slots)
    tile = torch.arange(num_tiles, device=device)
    block = torch.searchsorted(tiles_end, tile, right=True).clamp_(max=num_blocks - 1)
    return Grouping(query[:-1].view(num_tiles, height), block, place.view(num_queries, num_slots))


def sum_rows(table: Tensor, place: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ over slots of weights · table[place], [num_queries, D]: table [rows, D], place and weights [num_queries, n]."""
    return torch.nn.functional.embedding_bag(place, table, mode="sum", per_sample_weights=weights)
