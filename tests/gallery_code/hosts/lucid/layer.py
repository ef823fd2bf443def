"""The attention layer: training forward, and the same in pieces with a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from . import env, kernels
from .blocks import block_ends, num_compressed, num_selection
from .cache import LucidCache
from .compress import BlockCompressor
from .config import LucidConfig
from .gate import BRANCHES, BranchGate, mix
from .rotary import Rotary
from .select import block_scores, choose_blocks
from .utils import Meter, RMSNorm, group_queries, merge_groups, split_heads, tiles


class LucidAttention(nn.Module):
    """Grouped-query attention of three branches that a gate mixes. Each branch has keys and values of its own."""

    def __init__(self, config: LucidConfig) -> None:
        super().__init__()
        self.config = config
        width = config.n_heads * config.head_dim
        kv_width = config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, width, bias=False)
        self.k_proj = nn.ModuleDict({name: nn.Linear(config.dim, kv_width, bias=False) for name in BRANCHES})
        self.v_proj = nn.ModuleDict({name: nn.Linear(config.dim, kv_width, bias=False) for name in BRANCHES})
        self.compress_k = BlockCompressor(config.head_dim, config.block, config.stride)
        self.compress_v = BlockCompressor(config.head_dim, config.block, config.stride)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.rotary = Rotary(config.head_dim, config.rotary_dim, config.rope_base)
        self.gate = BranchGate(config.dim, config.n_heads)
        self.out = nn.Linear(width, config.dim, bias=False)
        self.meter = Meter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal weights of the configured width."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out):
            for weight in projection.parameters():
                nn.init.normal_(weight, std=self.config.init_std)

    # ------------------------------------------------------------------ shared by training and decoding

    def _queries(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.config.n_heads))
        return group_queries(self.rotary(q, positions, longest), self.config.n_kv_heads)

    def _keys_values(self, x: Tensor, branch: str) -> tuple[Tensor, Tensor]:
        groups = self.config.n_kv_heads
        k = self.k_norm(split_heads(self.k_proj[branch](x), groups))
        return k, split_heads(self.v_proj[branch](x), groups)

    def _compress(self, k: Tensor, v: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Whole blocks of k and v, the first of them number `first`; keys are rotated to their block's end."""
        config = self.config
        ck, cv = self.compress_k(k), self.compress_v(v)
        ends = block_ends(first, ck.shape[2], config.block, config.stride, k.device)
        longest = (first + ck.shape[2]) * config.stride + config.block
        return self.rotary(ck, ends, longest), cv

    def _far(
        self, q: Tensor, ck: Tensor, cv: Tensor, k: Tensor, v: Tensor, positions: Tensor, impl: str
    ) -> tuple[Tensor, Tensor]:
        """The compressed branch and, from what it looks at, the selected one."""
        compressed, probs = kernels.compressed_attention(q, ck, cv, positions, self.config)
        scores = block_scores(probs, num_selection(k.shape[2], self.config.select_block), self.config)
        chosen, valid = choose_blocks(scores, positions, self.config)
        selected = kernels.selected_attention(q, k, v, chosen, valid, positions, self.config, impl)
        return compressed, selected

    def _combine(self, x: Tensor, compressed: Tensor, selected: Tensor, sliding: Tensor) -> Tensor:
        gates = self.gate(x)
        branches = (merge_groups(compressed), merge_groups(selected), merge_groups(sliding))
        if self.config.collect_stats:
            for index, name in enumerate(BRANCHES):
                self.meter.add(f"gate/{name}", gates[..., index])
        mixed = mix(branches, gates).flatten(2)
        mixed = F.dropout(mixed, self.config.dropout, self.training)
        return self.out(mixed)

    # ------------------------------------------------------------------ one pass

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, dim] to [B, S, dim]; token t sees tokens 0 to t."""
        config = self.config
        length = x.shape[1]
        if length == 0:
            return torch.zeros_like(x)
        impl = kernels.resolve(config, length)
        tile = length if impl == "dense" else env.tile(config.query_chunk)
        recompute = config.checkpoint_chunks and self.training and torch.is_grad_enabled() and tile < length
        positions = torch.arange(length, device=x.device)

        q = self._queries(x, positions, length)
        ck, cv = self._compress(*self._keys_values(x, "compressed"), first=0)
        k, v = self._keys_values(x, "selected")
        k = self.rotary(k, positions, length)

        compressed, selected = [], []
        for start, end in tiles(length, tile):
            seen = num_compressed(end, config.block, config.stride)
            pieces = (q[:, :, :, start:end], ck[:, :, :seen], cv[:, :, :seen], k, v, positions[start:end], impl)
            far = checkpoint(self._far, *pieces, use_reentrant=False) if recompute else self._far(*pieces)
            compressed.append(far[0])
            selected.append(far[1])

        k, v = self._keys_values(x, "sliding")
        k = self.rotary(k, positions, length)
        if impl == "dense":
            sliding = kernels.sliding_dense(q, k, v, positions, positions, config)
        else:
            sliding = kernels.sliding_tiled(q, k, v, config, tile, recompute)
        return self._combine(x, torch.cat(compressed, dim=3), torch.cat(selected, dim=3), sliding)

    # ------------------------------------------------------------------ with a cache

    def new_cache(self, x: Tensor) -> LucidCache:
        """An empty cache for inputs like x."""
        return LucidCache(self.config, x.shape[0], x)

    @torch.no_grad()
    def extend(self, x: Tensor, cache: LucidCache) -> Tensor:
        """The outputs of the next tokens [B, T, dim]; the cache takes them in. For inference only."""
        config = self.config
        offset, tokens = cache.length, x.shape[1]
        longest = offset + tokens
        positions = torch.arange(offset, longest, device=x.device)
        q = self._queries(x, positions, longest)

        raw_k, raw_v = cache.open_blocks(*self._keys_values(x, "compressed"))
        ready = num_compressed(raw_k.shape[2], config.block, config.stride)
        if ready:
            span = (ready - 1) * config.stride + config.block
            ck, cv = self._compress(raw_k[:, :, :span], raw_v[:, :, :span], first=cache.cmp_k.length)
            cache.close_blocks(ck, cv)
        ck, cv = cache.cmp_k.view(), cache.cmp_v.view()

        k, v = self._keys_values(x, "selected")
        k, v = cache.append_selected(self.rotary(k, positions, longest), v)
        impl = "dense" if tokens == 1 else kernels.resolve(config, longest)
        compressed, selected = self._far(q, ck, cv, k, v, positions, impl)

        k, v = self._keys_values(x, "sliding")
        k, v, k_positions = cache.append_window(self.rotary(k, positions, longest), v)
        sliding = kernels.sliding_dense(q, k, v, positions, k_positions, config)

        cache.advance(tokens)
        return self._combine(x, compressed, selected, sliding)
