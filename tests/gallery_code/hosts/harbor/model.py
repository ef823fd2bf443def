"""Blocks and the decoder that stacks them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .attention import Context, HarborAttention
from .cache import LinearCache, ModelCache, RingCache
from .config import HarborConfig
from .masks import index_within, segment_ids
from .moe import MixtureOfExperts
from .rope import RotaryEmbedding
from .utils import RMSNorm, flag, pieces


class HarborBlock(nn.Module):
    """Norm, attention, norm, experts, each around a residual."""

    def __init__(self, config: HarborConfig, layer: int, rope: RotaryEmbedding) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = HarborAttention(config, layer, rope)
        self.moe_norm = RMSNorm(config.dim, config.norm_eps)
        self.moe = MixtureOfExperts(config)

    def forward(
        self, x: Tensor, context: Context, cache: RingCache | LinearCache | None = None, recompute: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The block's output and its balance loss; with `recompute` attention is computed again in backward."""
        attended = self.attention_norm(x)
        if recompute:
            attended = checkpoint(self.attention, attended, context, cache, use_reentrant=False)
        else:
            attended = self.attention(attended, context, cache)
        x = x + F.dropout(attended, self.dropout, self.training)
        mixed, balance = self.moe(self.moe_norm(x))
        return x + F.dropout(mixed, self.dropout, self.training), balance


class HarborDecoder(nn.Module):
    """Blocks and a last norm on embeddings."""

    def __init__(self, config: HarborConfig) -> None:
        super().__init__()
        self.config = config
        self.rope = RotaryEmbedding(config.head_dim, config.rope_base, config.rope_scaling)
        self.blocks = nn.ModuleList(HarborBlock(config, layer, self.rope) for layer in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def _context(self, x: Tensor, position_ids: Tensor | None, padding_mask: Tensor | None) -> Context:
        index = torch.arange(x.shape[1], device=x.device)
        if position_ids is None:
            return Context(index[None], index, padding=padding_mask)
        segments = segment_ids(position_ids)
        return Context(position_ids, index, segments, index_within(segments), padding_mask)

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        return_balance: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[B, S, dim] to [B, S, dim].

        `position_ids` [B, S] start again with every packed document. `padding_mask` [B, S] is true for real tokens.
        """
        context = self._context(x, position_ids, padding_mask)
        recompute = self.config.checkpoint_attention and self.training and torch.is_grad_enabled()
        recompute = recompute and flag("HARBOR_CHECKPOINT", True)
        total = x.new_zeros(())
        for block in self.blocks:
            x, balance = block(x, context, recompute=recompute)
            total = total + balance.to(total.dtype)
        x = self.norm(x)
        return (x, total / len(self.blocks)) if return_balance else x

    def new_cache(self, x: Tensor) -> ModelCache:
        """An empty cache for inputs like x."""
        return ModelCache(self.config, x.shape[0], x)

    @torch.no_grad()
    def extend(self, x: Tensor, cache: ModelCache) -> Tensor:
        """The outputs of the next tokens [B, T, dim]; the cache takes them in. For inference only."""
        index = torch.arange(cache.length, cache.length + x.shape[1], device=x.device)
        context = Context(index[None], index)
        for block, layer_cache in zip(self.blocks, cache.layers, strict=True):
            x, _ = block(x, context, layer_cache)
        cache.length += context.index.shape[0]
        return self.norm(x)

    @torch.no_grad()
    def prefill(self, x: Tensor, cache: ModelCache | None = None) -> tuple[Tensor, ModelCache]:
        """Read a prompt in chunks; goes on from a cache where one is given."""
        if cache is None:
            cache = self.new_cache(x)
        spans = pieces(x.shape[1], self.config.prefill_chunk)
        return torch.cat([self.extend(x[:, start:end], cache) for start, end in spans], dim=1), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: ModelCache) -> tuple[Tensor, ModelCache]:
        """One more token [B, 1, dim]."""
        return self.extend(x, cache), cache
