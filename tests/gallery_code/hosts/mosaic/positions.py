"""ALiBi slopes, distances and masks of block-local attention."""

import math

import torch
from torch import Tensor


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of ALiBi, for any number of heads: geometric, then every other one of twice as many."""

    def geometric(count: int) -> list[float]:
        start = 2.0 ** (-8.0 / count)
        return [start ** (index + 1) for index in range(count)]

    power = 2 ** math.floor(math.log2(heads))
    slopes = geometric(power)
    if power < heads:
        slopes += geometric(2 * power)[0::2][: heads - power]
    return torch.tensor(slopes)


def local_distance(block: int, device: torch.device) -> Tensor:
    """Distance of a block's queries to the keys of the block before and of its own, [block, 2 * block]."""
    query = torch.arange(block, device=device) + block
    key = torch.arange(2 * block, device=device)
    return (query[:, None] - key).clamp(min=0)


def landmark_distance(block: int, count: int, device: torch.device) -> Tensor:
    """Distance of a block's queries to the last tokens of the blocks of its landmarks, [block, count]."""
    query = torch.arange(block, device=device)
    blocks_back = torch.arange(count + 1, 1, -1, device=device)
    return query[:, None] + blocks_back * block - (block - 1)


def local_visible(n_blocks: int, block: int, device: torch.device) -> Tensor:
    """Which keys a query of each block sees, [n_blocks, block, 2 * block]: none later, none before the start."""
    query = torch.arange(block, device=device)
    own = query[:, None] >= query
    before = torch.ones(block, block, dtype=torch.bool, device=device)
    visible = torch.cat([before, own], dim=1).repeat(n_blocks, 1, 1)
    visible[0, :, :block] = False
    return visible


def landmark_visible(n_blocks: int, count: int, device: torch.device) -> Tensor:
    """Which landmarks of its window each block sees, [n_blocks, count]: those of blocks that exist."""
    blocks_back = torch.arange(count + 1, 1, -1, device=device)
    return torch.arange(n_blocks, device=device)[:, None] >= blocks_back


class DistanceTable:
    """Distances of local keys and landmarks, kept by geometry and device."""

    def __init__(self, block: int, count: int) -> None:
        """A table for one geometry."""
        self.block = block
        self.count = count
        self._kept: dict[tuple[bool, torch.device], Tensor] = {}

    def get(self, landmarks: bool, device: torch.device) -> Tensor:
        """[block, 2 * block (+ count)] distances."""
        key = (landmarks, device)
        if key not in self._kept:
            distance = local_distance(self.block, device)
            if landmarks:
                distance = torch.cat([distance, landmark_distance(self.block, self.count, device)], dim=1)
            self._kept[key] = distance
        return self._kept[key]
