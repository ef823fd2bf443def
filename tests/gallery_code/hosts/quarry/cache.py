"""What decoding keeps: latents, rotated keys, index keys, and how many tokens every expert has taken."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .config import QuarryConfig


class LatentCache:
    """Cache of one layer; buffers grow by doubling, `length` says how much of them is used."""

    def __init__(self, cfg: QuarryConfig, like: Tensor) -> None:
        """An empty cache with the batch, device and dtype of `like`."""
        batch = like.shape[0]
        self.length = 0
        self.latent = like.new_zeros(batch, cfg.capacity, cfg.kv_rank)
        self.rope_key = like.new_zeros(batch, cfg.capacity, cfg.rope_dim)
        self.index_key = like.new_zeros(batch, cfg.capacity, cfg.index_dim)
        self.expert_counts = torch.zeros(batch, cfg.n_experts, dtype=torch.long, device=like.device)

    @property
    def capacity(self) -> int:
        """Tokens for which there is room."""
        return self.latent.shape[1]

    def _grow(self, needed: int) -> None:
        """Make room for `needed` tokens."""
        size = self.capacity
        while size < needed:
            size *= 2
        for name in ("latent", "rope_key", "index_key"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], size, old.shape[2])
            new[:, : self.length] = old[:, : self.length]
            setattr(self, name, new)

    def append(self, latent: Tensor, rope_key: Tensor, index_key: Tensor) -> None:
        """Keep tokens, [B, S, ...] each."""
        end = self.length + latent.shape[1]
        if end > self.capacity:
            self._grow(end)
        self.latent[:, self.length : end] = latent
        self.rope_key[:, self.length : end] = rope_key
        self.index_key[:, self.length : end] = index_key
        self.length = end

    def used(self) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, rotated keys and index keys of the tokens so far."""
        return self.latent[:, : self.length], self.rope_key[:, : self.length], self.index_key[:, : self.length]

    def num_bytes(self) -> int:
        """Memory that the buffers hold."""
        return sum(x.numel() * x.element_size() for x in (self.latent, self.rope_key, self.index_key))


@dataclass
class ModelCache:
    """Caches of all layers."""

    layers: list[LatentCache] = field(default_factory=list)

    @classmethod
    def empty(cls, cfg: QuarryConfig, like: Tensor) -> "ModelCache":
        """Empty caches."""
        return cls([LatentCache(cfg, like) for _ in range(cfg.n_layers)])

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.layers[0].length if self.layers else 0

    def num_bytes(self) -> int:
        """Memory that all buffers hold."""
        return sum(layer.num_bytes() for layer in self.layers)
