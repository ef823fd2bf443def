"""What decoding remembers: all keys for selection, compressed blocks, an open block, a window."""

from __future__ import annotations

import torch
from torch import Tensor

from .config import LucidConfig


class GrowBuffer:
    """Tensors [B, G, n, D] that grow at the end; memory is doubled when it is used up."""

    def __init__(self, batch: int, groups: int, width: int, like: Tensor, capacity: int = 32) -> None:
        self._data = like.new_zeros(batch, groups, capacity, width)
        self.length = 0

    def append(self, new: Tensor) -> None:
        """Add [B, G, t, D] at the end."""
        needed = self.length + new.shape[2]
        if needed > self._data.shape[2]:
            capacity = max(needed, 2 * self._data.shape[2])
            grown = self._data.new_zeros(*self._data.shape[:2], capacity, self._data.shape[3])
            grown[:, :, : self.length] = self.view()
            self._data = grown
        self._data[:, :, self.length : needed] = new
        self.length = needed

    def view(self) -> Tensor:
        """What has been added so far."""
        return self._data[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Take other rows of the batch, as beam search does."""
        self._data = self._data.index_select(0, rows)


class LucidCache:
    """The state of one layer between calls of `extend`.

    `tail_k` and `tail_v` are the keys and values, not rotated, from the start of the first compressed block that is
    not complete. `win_k` and `win_v` are the last `window` tokens at most.
    """

    def __init__(self, config: LucidConfig, batch: int, like: Tensor) -> None:
        groups, width = config.n_kv_heads, config.head_dim
        self.config = config
        self.length = 0
        self.sel_k = GrowBuffer(batch, groups, width, like)
        self.sel_v = GrowBuffer(batch, groups, width, like)
        self.cmp_k = GrowBuffer(batch, groups, width, like)
        self.cmp_v = GrowBuffer(batch, groups, width, like)
        empty = like.new_zeros(batch, groups, 0, width)
        self.tail_k, self.tail_v = empty, empty
        self.win_k, self.win_v = empty, empty

    def advance(self, tokens: int) -> None:
        """Count tokens that every field holds by now."""
        self.length += tokens

    def append_selected(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add rotated keys and values; all of them come back."""
        self.sel_k.append(k)
        self.sel_v.append(v)
        return self.sel_k.view(), self.sel_v.view()

    def append_window(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add rotated keys and values; what new queries may need comes back, and its positions."""
        held = self.win_k.shape[2]
        keys, values = torch.cat((self.win_k, k), dim=2), torch.cat((self.win_v, v), dim=2)
        positions = torch.arange(self.length - held, self.length + k.shape[2], device=k.device)
        keep = min(self.config.window, keys.shape[2])
        self.win_k, self.win_v = keys[:, :, keys.shape[2] - keep :], values[:, :, values.shape[2] - keep :]
        return keys, values, positions

    def open_blocks(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add raw keys and values to the tail, which comes back from the first incomplete block on."""
        self.tail_k = torch.cat((self.tail_k, k), dim=2)
        self.tail_v = torch.cat((self.tail_v, v), dim=2)
        return self.tail_k, self.tail_v

    def close_blocks(self, ck: Tensor, cv: Tensor) -> None:
        """Store compressed blocks and cut the tail to where the next one starts."""
        self.cmp_k.append(ck)
        self.cmp_v.append(cv)
        used = ck.shape[2] * self.config.stride
        self.tail_k, self.tail_v = self.tail_k[:, :, used:], self.tail_v[:, :, used:]

    def reorder(self, rows: Tensor) -> None:
        """Take other rows of the batch in every field."""
        for buffer in (self.sel_k, self.sel_v, self.cmp_k, self.cmp_v):
            buffer.reorder(rows)
        for name in ("tail_k", "tail_v", "win_k", "win_v"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
