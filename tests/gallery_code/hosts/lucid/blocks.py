"""The geometry of blocks: how many there are, what they cover, who sees them."""

from __future__ import annotations

import torch
from torch import Tensor


def num_compressed(length: int, block: int, stride: int) -> int:
    """Compressed blocks that lie wholly inside of the first `length` tokens."""
    if length < block:
        return 0
    return (length - block) // stride + 1


def visible_compressed(positions: Tensor, block: int, stride: int) -> Tensor:
    """For each position how many compressed blocks end at or before it."""
    seen = torch.div(positions + 1 - block, stride, rounding_mode="floor") + 1
    return seen.clamp_min(0)


def block_ends(first: int, count: int, block: int, stride: int, device: torch.device) -> Tensor:
    """Position of the last token of `count` compressed blocks from number `first` on."""
    number = torch.arange(first, first + count, device=device)
    return number * stride + block - 1


def num_selection(length: int, size: int) -> int:
    """Selection blocks of `length` tokens; the last one may be incomplete."""
    return (length + size - 1) // size


def own_block(positions: Tensor, size: int) -> Tensor:
    """The selection block that a position lies in."""
    return torch.div(positions, size, rounding_mode="floor")


def overlaps(count: int, block: int, stride: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """How compressed blocks share in selection blocks: the first and the last one they touch, share of the last.

    A compressed block is no longer than a selection block, so it touches two at most.
    """
    start = torch.arange(count, device=device) * stride
    end = start + block
    first = torch.div(start, size, rounding_mode="floor")
    last = torch.div(end - 1, size, rounding_mode="floor")
    beyond = (end - last * size).clamp(0, block)
    share = torch.where(last > first, beyond, torch.zeros_like(beyond))
    return first, last, share / block
