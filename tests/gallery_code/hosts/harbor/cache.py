"""Caches: a ring for layers with a window, a growing one for global layers."""

from __future__ import annotations

import torch
from torch import Tensor

from .config import HarborConfig


class RingCache:
    """The first `sink_tokens` tokens stay, the others share `window` slots in turn.

    `index` holds each slot's index in the sequence, -1 for a slot that is empty.
    """

    def __init__(self, batch: int, config: HarborConfig, like: Tensor) -> None:
        self.sinks = config.sink_tokens
        self.window = config.window
        slots = self.sinks + self.window
        self.k = like.new_zeros(batch, config.n_kv_heads, slots, config.head_dim)
        self.v = torch.zeros_like(self.k)
        self.index = torch.full((slots,), -1, dtype=torch.long, device=like.device)

    def slot(self, index: Tensor) -> Tensor:
        """Where tokens of given indices are kept."""
        turn = self.sinks + (index - self.sinks) % self.window
        return torch.where(index < self.sinks, index, turn)

    def update(self, k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the new tokens may see, and afterwards the new tokens are kept.

        New tokens must not overwrite what earlier ones of the same call still see, so the ring is read first.
        """
        keys, values = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        indices = torch.cat((self.index, index))
        stays = (index < self.sinks) | (index > index[-1] - self.window)
        slots = self.slot(index[stays])
        self.k[:, :, slots] = k[:, :, stays]
        self.v[:, :, slots] = v[:, :, stays]
        self.index[slots] = index[stays]
        return keys, values, indices

    def reorder(self, rows: Tensor) -> None:
        """Take other rows of the batch."""
        self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


class LinearCache:
    """All tokens; capacity is doubled when it is used up."""

    def __init__(self, batch: int, config: HarborConfig, like: Tensor, capacity: int = 64) -> None:
        self.k = like.new_zeros(batch, config.n_kv_heads, capacity, config.head_dim)
        self.v = torch.zeros_like(self.k)
        self.used = 0

    def _reserve(self, needed: int) -> None:
        have = self.k.shape[2]
        if needed <= have:
            return
        extra = max(needed, 2 * have) - have
        room = self.k.new_zeros(*self.k.shape[:2], extra, self.k.shape[3])
        self.k, self.v = torch.cat((self.k, room), dim=2), torch.cat((self.v, room), dim=2)

    def update(self, k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the new tokens; everything up to them comes back."""
        end = self.used + k.shape[2]
        self._reserve(end)
        self.k[:, :, self.used : end] = k
        self.v[:, :, self.used : end] = v
        self.used = end
        return self.k[:, :, :end], self.v[:, :, :end], torch.arange(end, device=index.device)

    def reorder(self, rows: Tensor) -> None:
        """Take other rows of the batch."""
        self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


class ModelCache:
    """One cache per layer and how many tokens all of them hold."""

    def __init__(self, config: HarborConfig, batch: int, like: Tensor) -> None:
        self.length = 0
        self.layers: list[RingCache | LinearCache] = []
        for layer in range(config.n_layers):
            kind = LinearCache if config.is_global(layer) else RingCache
            self.layers.append(kind(batch, config, like))

    def reorder(self, rows: Tensor) -> None:
        """Take other rows of the batch in every layer."""
        for layer in self.layers:
            layer.reorder(rows)
