"""A transformer block around the attention, with prefill in chunks and single steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import LucidCache
from .config import LucidConfig
from .layer import LucidAttention
from .utils import RMSNorm, tiles


class FeedForward(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, config: LucidConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.up = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.gate = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.down = nn.Linear(config.hidden_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.gate(x)) * self.up(x)
        return F.dropout(self.down(hidden), self.dropout, self.training)


class LucidBlock(nn.Module):
    """Norm, attention, norm, feed-forward, each around a residual."""

    def __init__(self, config: LucidConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = LucidAttention(config)
        self.mlp_norm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, dim] to [B, S, dim]."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))

    @torch.no_grad()
    def extend(self, x: Tensor, cache: LucidCache) -> Tensor:
        """The outputs of the next tokens."""
        x = x + self.attention.extend(self.attention_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))

    @torch.no_grad()
    def prefill(self, x: Tensor, cache: LucidCache | None = None) -> tuple[Tensor, LucidCache]:
        """Read a prompt in chunks, which bounds memory. Goes on from a cache where one is given."""
        if cache is None:
            cache = self.attention.new_cache(x)
        outputs = [self.extend(x[:, start:end], cache) for start, end in tiles(x.shape[1], self.config.prefill_chunk)]
        return torch.cat(outputs, dim=1), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: LucidCache) -> tuple[Tensor, LucidCache]:
        """One more token [B, 1, dim]."""
        return self.extend(x, cache), cache
