"""What decoding keeps: a ring of the latest tokens, the first tokens, pages of all tokens, and sums of blocks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .config import TundraConfig
from .utils import compute_dtype


class RingCache:
    """Keys and values of the latest `window` tokens, a token in slot position % window, and of the first `sinks`."""

    def __init__(self, cfg: TundraConfig, like: Tensor) -> None:
        """An empty ring with the batch, device and dtype of `like`."""
        self.length = 0
        batch, heads = like.shape[0], (cfg.n_kv, cfg.head_dim)
        self.keys, self.values = (like.new_zeros(batch, cfg.window, *heads) for _ in range(2))
        self.sink_keys, self.sink_values = (like.new_zeros(batch, cfg.sinks, *heads) for _ in range(2))

    @property
    def window(self) -> int:
        """Slots of the ring."""
        return self.keys.shape[1]

    def latest(self) -> tuple[Tensor, Tensor, int]:
        """Keys and values of the latest tokens in order, and the position of the first of them."""
        first = max(0, self.length - self.window)
        slot = torch.arange(first, self.length, device=self.keys.device) % self.window
        return self.keys[:, slot], self.values[:, slot], first

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keep tokens, [B, S, G, d] each; of more than a window the latest."""
        end = self.length + keys.shape[1]
        missing = max(0, min(end, self.sink_keys.shape[1]) - self.length)
        self.sink_keys[:, self.length : self.length + missing] = keys[:, :missing]
        self.sink_values[:, self.length : self.length + missing] = values[:, :missing]
        kept = min(self.window, keys.shape[1])
        slot = torch.arange(end - kept, end, device=keys.device) % self.window
        self.keys[:, slot] = keys[:, -kept:]
        self.values[:, slot] = values[:, -kept:]
        self.length = end

    def tensors(self) -> tuple[Tensor, ...]:
        """All buffers, rows first."""
        return self.keys, self.values, self.sink_keys, self.sink_values

    def reorder(self, rows: Tensor) -> None:
        """Choose rows of the batch, in any order and number."""
        self.keys, self.values, self.sink_keys, self.sink_values = (x[rows] for x in self.tensors())


class PagedCache:
    """Keys and values of all tokens in pages of a block each, and sums of keys and values by block.

    Pages of all rows lie in one pool; a table says which pages a row has.
    """

    def __init__(self, cfg: TundraConfig, like: Tensor) -> None:
        """An empty cache with the batch, device and dtype of `like`."""
        self.length = 0
        self.block = cfg.block
        batch, heads = like.shape[0], (cfg.n_kv, cfg.head_dim)
        self.keys, self.values = (like.new_zeros(cfg.pages * batch, cfg.block, *heads) for _ in range(2))
        self.table = torch.zeros(batch, 0, dtype=torch.long, device=like.device)
        wide = compute_dtype(like)
        self.key_sums, self.value_sums = (like.new_zeros(batch, 0, *heads, dtype=wide) for _ in range(2))

    def _reserve(self, blocks: int) -> None:
        """Give every row pages for so many blocks."""
        batch, have = self.table.shape
        if blocks <= have:
            return
        pool = self.keys.shape[0]
        while pool < blocks * batch:
            pool *= 2
        if pool > self.keys.shape[0]:
            self.keys, self.values = (
                torch.cat([x, x.new_zeros(pool - x.shape[0], *x.shape[1:])]) for x in (self.keys, self.values)
            )
        pages = torch.arange(have * batch, blocks * batch, device=self.table.device)
        self.table = torch.cat([self.table, pages.view(-1, batch).T], dim=1)
        self.key_sums, self.value_sums = (
            torch.cat([x, x.new_zeros(batch, blocks - have, *x.shape[2:])], dim=1)
            for x in (self.key_sums, self.value_sums)
        )

    def append(self, keys: Tensor, plain_keys: Tensor, values: Tensor) -> None:
        """Keep tokens, [B, S, G, d] each: rotated keys, keys without rotation for the sums, and values."""
        end = self.length + keys.shape[1]
        self._reserve(-(-end // self.block))
        position = torch.arange(self.length, end, device=keys.device)
        block = position // self.block
        slot = self.table[:, block] * self.block + position % self.block
        self.keys.flatten(0, 1)[slot] = keys
        self.values.flatten(0, 1)[slot] = values
        self.key_sums.index_add_(1, block, plain_keys.to(self.key_sums.dtype))
        self.value_sums.index_add_(1, block, values.to(self.value_sums.dtype))
        self.length = end

    def slots(self) -> Tensor:
        """Index in the flattened pool of each block's tokens, [B, N, block]."""
        return self.table.unsqueeze(-1) * self.block + torch.arange(self.block, device=self.table.device)

    def reorder(self, rows: Tensor) -> None:
        """Choose rows of the batch, in any order and number; each gets pages of its own."""
        table = self.table[rows]
        self.key_sums, self.value_sums = self.key_sums[rows], self.value_sums[rows]
        self.keys, self.values = (x[table.T.flatten()] for x in (self.keys, self.values))
        batch, blocks = table.shape
        self.table = torch.arange(batch * blocks, device=table.device).view(blocks, batch).T.contiguous()


@dataclass
class LayerCache:
    """What one layer keeps."""

    ring: RingCache
    pages: PagedCache

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.ring.length

    def num_bytes(self) -> int:
        """Memory that the buffers hold."""
        pages = self.pages
        tensors = (*self.ring.tensors(), pages.keys, pages.values, pages.table, pages.key_sums, pages.value_sums)
        return sum(x.numel() * x.element_size() for x in tensors)


@dataclass
class ModelCache:
    """Caches of all layers."""

    layers: list[LayerCache] = field(default_factory=list)

    @classmethod
    def empty(cls, cfg: TundraConfig, like: Tensor) -> "ModelCache":
        """Empty caches."""
        return cls([LayerCache(RingCache(cfg, like), PagedCache(cfg, like)) for _ in range(cfg.n_layers)])

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.layers[0].length if self.layers else 0

    def reorder(self, rows: Tensor) -> None:
        """Choose rows of the batch, in any order and number, as a beam search does."""
        for layer in self.layers:
            layer.ring.reorder(rows)
            layer.pages.reorder(rows)

    def num_bytes(self) -> int:
        """Memory that all buffers hold."""
        return sum(layer.num_bytes() for layer in self.layers)
