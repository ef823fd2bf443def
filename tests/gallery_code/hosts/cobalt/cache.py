"""What decoding keeps: raw tokens for selection, compressed tokens, and two rings of recent tokens.

All rows of a cache have the same length. Tensors are [B, T, G, D].
"""

import copy

import torch
from torch import Tensor

from .config import CobaltConfig


class GrowingBuffer:
    """Tokens from position 0 on, in storage that doubles when it is full."""

    def __init__(self, capacity: int = 32):
        self.capacity = capacity
        self.length = 0
        self.data: Tensor | None = None

    def append(self, x: Tensor) -> Tensor:
        """Add x and return everything."""
        end = self.length + x.shape[1]
        if self.data is None:
            self.data = x.new_empty(x.shape[0], max(self.capacity, x.shape[1]), *x.shape[2:])
        if end > self.data.shape[1]:
            grown = x.new_empty(x.shape[0], max(2 * self.data.shape[1], end), *x.shape[2:])
            grown[:, : self.length] = self.data[:, : self.length]
            self.data = grown
        self.data[:, self.length : end] = x
        self.length = end
        return self.data[:, :end]

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)

    def reorder(self, rows: Tensor) -> None:
        if self.data is not None:
            self.data = self.data.index_select(0, rows)


class RingBuffer:
    """The last `capacity` tokens; that of position p is in slot p % capacity."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.length = 0
        self.oldest = 0
        self.data: Tensor | None = None

    def since(self, position: int, like: Tensor) -> Tensor:
        """Tokens from a position on to the end."""
        if self.data is None:
            return like[:, :0]
        slots = torch.arange(position, self.length, device=like.device) % self.capacity
        return self.data.index_select(1, slots)

    def write(self, x: Tensor) -> None:
        if self.data is None:
            self.data = x.new_zeros(x.shape[0], self.capacity, *x.shape[2:])
        end = self.length + x.shape[1]
        x = x[:, -self.capacity :]
        slots = torch.arange(end - x.shape[1], end, device=x.device) % self.capacity
        self.data.index_copy_(1, slots, x)
        self.length = end
        self.oldest = max(self.oldest, end - self.capacity)

    def crop(self, length: int, needed: int) -> None:
        """Forget tokens from `length` on; those from `needed` on must still be there."""
        if length < self.length:
            if needed < min(self.oldest, length):
                raise ValueError(f"cannot go back to {length} tokens: none before {self.oldest} are kept")
            self.length = length
            if length == 0:
                self.oldest = 0

    def reorder(self, rows: Tensor) -> None:
        if self.data is not None:
            self.data = self.data.index_select(0, rows)


class LayerCache:
    def __init__(self, cfg: CobaltConfig):
        self.cfg = cfg
        self.reset()

    def reset(self) -> None:
        cfg = self.cfg
        self.raw_k, self.raw_v = GrowingBuffer(), GrowingBuffer()
        self.cmp_k, self.cmp_v = GrowingBuffer(), GrowingBuffer()
        self.pending_k, self.pending_v = (RingBuffer(cfg.block_len + cfg.rollback) for _ in range(2))
        self.win_k, self.win_v = (RingBuffer(cfg.window + cfg.rollback) for _ in range(2))
        self.reads = {"compressed": 0, "selected": 0, "sliding": 0}

    @property
    def length(self) -> int:
        return self.raw_k.length

    def buffers(self) -> list[GrowingBuffer | RingBuffer]:
        return [
            self.raw_k, self.raw_v, self.cmp_k, self.cmp_v, self.pending_k, self.pending_v, self.win_k, self.win_v
        ]  # fmt: skip

    def add_raw(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.raw_k.append(k), self.raw_v.append(v)

    def add_pending(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens from the first block on that was not compressed yet, the new ones included."""
        first = self.cmp_k.length * self.cfg.stride
        tokens = tuple(
            torch.cat((ring.since(first, new), new), dim=1) for ring, new in ((self.pending_k, k), (self.pending_v, v))
        )
        self.pending_k.write(k)
        self.pending_v.write(v)
        return tokens

    def add_compressed(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cmp_k.append(k), self.cmp_v.append(v)

    def add_window(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values that a new query may see, and the position of the first one."""
        base = max(0, self.win_k.length - self.cfg.window + 1)
        keys = torch.cat((self.win_k.since(base, k), k), dim=1)
        values = torch.cat((self.win_v.since(base, v), v), dim=1)
        self.win_k.write(k)
        self.win_v.write(v)
        return keys, values, base

    def count(self, num_blocks: int, ranges: Tensor, positions: Tensor) -> None:
        """Tokens that the queries of a row read, as in table 4 of the paper; selected ones as the mean of groups."""
        spans = (ranges[..., 1] - ranges[..., 0]).sum((-1, -2)).to(torch.float32).mean()
        self.reads["compressed"] += num_blocks * len(positions)
        self.reads["selected"] = self.reads["selected"] + spans
        self.reads["sliding"] = self.reads["sliding"] + (positions + 1).clamp(max=self.cfg.window).sum()

    def crop(self, length: int) -> None:
        cfg = self.cfg
        blocks = cfg.num_blocks(length)
        for ring in (self.win_k, self.win_v):
            ring.crop(length, max(0, length - cfg.window + 1))
        for ring in (self.pending_k, self.pending_v):
            ring.crop(length, blocks * cfg.stride)
        for raw in (self.raw_k, self.raw_v):
            raw.crop(length)
        for compressed in (self.cmp_k, self.cmp_v):
            compressed.crop(blocks)

    def reorder(self, rows: Tensor) -> None:
        for buffer in self.buffers():
            buffer.reorder(rows)


class CobaltCache:
    """The caches of all layers."""

    def __init__(self, cfg: CobaltConfig):
        self.layers = [LayerCache(cfg) for _ in range(cfg.layers)]

    @property
    def length(self) -> int:
        return self.layers[0].length

    def reads(self) -> dict[str, float]:
        """Tokens read so far, by branch, summed over layers."""
        return {name: float(sum(layer.reads[name] for layer in self.layers)) for name in self.layers[0].reads}

    def reorder(self, rows: Tensor) -> "CobaltCache":
        """Row i becomes what row rows[i] was, for beam search; in place."""
        for layer in self.layers:
            layer.reorder(rows)
        return self

    def crop(self, length: int) -> "CobaltCache":
        """Keep the first `length` tokens; a negative number takes that many back. In place."""
        length = max(0, self.length + length) if length < 0 else min(length, self.length)
        for layer in self.layers:
            layer.crop(length)
        return self

    def clone(self) -> "CobaltCache":
        return copy.deepcopy(self)

    def reset(self) -> None:
        for layer in self.layers:
            layer.reset()
