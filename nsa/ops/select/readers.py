"""Which queries read a block: (query, slot) pairs sorted by block, in parts of about equal length."""

from typing import NamedTuple

import torch
from torch import Tensor

ALIKE = 8  # what the readers of a part are a multiple of, but of the last of a block


class Readers(NamedTuple):
    """The readers of every block of every stream (row and group); a block with c has ⌈c / most⌉ parts.

    pair [pairs]: of the slots [B, T, G, n] they were made from, counted flat, one block's after another's; those of no
    block of the sequence are last; empty where nobody needs it. query [pairs]: of the same pairs, counted from the
    first of all queries. first [blocks + 1]: where each block's begin. first_part [blocks + 1]: the first part of each
    block. block [num]: of each part; `blocks`, their number, for a part that is none.
    """

    pair: Tensor
    query: Tensor
    first: Tensor
    first_part: Tensor
    block: Tensor
    most: int

    @property
    def num(self) -> int:
        """Parts there may be at most."""
        return self.block.shape[0]


def readers_of_blocks(slots: Tensor, first_query: int, num_blocks: int, most: int) -> Readers:
    """The readers among queries first_query + t of `slots` [B, T, G, n], in parts of `most`, among a sequence's blocks.

    Sorting is stable, so their order is fixed.
    """
    rows, num_queries, groups, num_slots = slots.shape
    stream = torch.arange(rows * groups, device=slots.device).view(rows, 1, groups, 1)
    nowhere = rows * groups * num_blocks
    exists = (slots >= 0) & (slots < num_blocks)
    block = torch.where(exists, slots + stream * num_blocks, nowhere).flatten()
    # Fewer bits are sorted faster.
    dtype = torch.int16 if nowhere < 2**15 else torch.int32
    block, pair = block.to(dtype).sort(stable=True)
    first = torch.searchsorted(block, torch.arange(nowhere + 1, dtype=dtype, device=slots.device))
    last_part = ((first.diff() + most - 1) // most).cumsum(0)
    num = most_parts(pair.numel(), nowhere, most)
    block_of_part = torch.searchsorted(last_part, torch.arange(num, device=slots.device), right=True)
    pair = pair.to(torch.int32) if pair.numel() < 2**31 else pair
    query = first_query + pair // (groups * num_slots) % num_queries
    first_part = torch.nn.functional.pad(last_part, (1, 0))
    return Readers(pair, query.to(torch.int32), first, first_part, block_of_part, most)


def most_parts(num_pairs: int, num_blocks: int, most: int) -> int:
    """Parts that the readers of so many blocks have at most; of c readers at most (c + most − 1) / most."""
    return (num_pairs + (most - 1) * min(num_pairs, num_blocks)) // most
