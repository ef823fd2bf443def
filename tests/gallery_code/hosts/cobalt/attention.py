"""The NSA layer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .blocks import select_ranges
from .cache import LayerCache
from .compress import Compressor
from .config import CobaltConfig
from .dense import compressed_attention, sliding_attention
from .layers import BranchGate, apply_rope, rope_tables
from .selected import selected_attention


@dataclass(frozen=True)
class Context:
    """What all layers share in one call: positions of the new tokens and of the blocks that they complete."""

    offset: int
    positions: Tensor  # [S]
    rope: tuple[Tensor, Tensor]
    block_rope: tuple[Tensor, Tensor]
    first_block: int

    @property
    def total(self) -> int:
        return self.offset + len(self.positions)


def make_context(cfg: CobaltConfig, offset: int, like: Tensor) -> Context:
    """The context of tokens `like` [B, S, dim] after `offset` others."""
    total = offset + like.shape[1]
    if total > cfg.max_positions:
        raise ValueError(f"{total} tokens are more than max_positions={cfg.max_positions}")
    first, after = cfg.num_blocks(offset), cfg.num_blocks(total)
    positions = torch.arange(offset, total, device=like.device)
    starts = torch.arange(first, after, device=like.device) * cfg.stride

    def tables(where: Tensor) -> tuple[Tensor, Tensor]:
        return rope_tables(where, cfg.head_dim, cfg.rope_base, cfg.rope_scale, like)

    return Context(offset, positions, tables(positions), tables(starts), first)


class NSAAttention(nn.Module):
    """Native Sparse Attention over [B, S, dim], causal, with grouped queries.

    Keys and values are projected for each branch. Compressed keys are rotated by the position of their block's first
    token, all others by their own.
    """

    def __init__(self, cfg: CobaltConfig):
        super().__init__()
        self.cfg = cfg
        width = cfg.groups * cfg.head_dim
        self.q_proj = nn.Linear(cfg.dim, cfg.heads * cfg.head_dim, bias=False)
        self.kv_compressed = nn.Linear(cfg.dim, 2 * width, bias=False)
        self.kv_selected = nn.Linear(cfg.dim, 2 * width, bias=False)
        self.kv_sliding = nn.Linear(cfg.dim, 2 * width, bias=False)
        self.compress_k, self.compress_v = Compressor(cfg), Compressor(cfg)
        self.gate = BranchGate(cfg.head_dim, cfg.gate_hidden, cfg.gate_temperature)
        self.out_proj = nn.Linear(cfg.heads * cfg.head_dim, cfg.dim, bias=False)

    def _keys_values(self, proj: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
        return proj(x).unflatten(-1, (2, self.cfg.groups, self.cfg.head_dim)).unbind(2)

    def _compressed(self, x: Tensor, ctx: Context, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of all complete blocks, [B, N, G, D]."""
        k, v = self._keys_values(self.kv_compressed, x)
        if cache is not None:
            k, v = cache.add_pending(k, v)
        k, v = apply_rope(self.compress_k(k), *ctx.block_rope), self.compress_v(v)
        return (k, v) if cache is None else cache.add_compressed(k, v)

    def branches(
        self, x: Tensor, ctx: Context, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs of the three branches [B, S, H, D], and the gates [B, S, G, 3]."""
        cfg = self.cfg
        plain = self.q_proj(x).unflatten(-1, (cfg.heads, cfg.head_dim))
        q = apply_rope(plain, *ctx.rope)

        block_k, block_v = self._compressed(x, ctx, cache)
        compressed = compressed_attention(q, block_k, block_v, ctx.positions, cfg)

        k, v = self._keys_values(self.kv_selected, x)
        k = apply_rope(k, *ctx.rope)
        if cache is not None:
            k, v = cache.add_raw(k, v)
        ranges = select_ranges(q, block_k, ctx.positions, ctx.total, cfg)
        selected = selected_attention(q, k, v, ranges, cfg)

        k, v = self._keys_values(self.kv_sliding, x)
        k, base = apply_rope(k, *ctx.rope), 0
        if cache is not None:
            k, v, base = cache.add_window(k, v)
            cache.count(block_k.shape[1], ranges, ctx.positions)
        sliding = sliding_attention(q, k, v, ctx.positions, base, cfg)
        return compressed, selected, sliding, self.gate(plain, cfg.groups)

    def forward(self, x: Tensor, ctx: Context | None = None, cache: LayerCache | None = None) -> Tensor:
        if ctx is None:
            ctx = make_context(self.cfg, 0 if cache is None else cache.length, x)
        compressed, selected, sliding, gates = self.branches(x, ctx, cache)
        gates = gates.repeat_interleave(self.cfg.per_group, dim=2).unsqueeze(-2)
        mixed = compressed * gates[..., 0] + selected * gates[..., 1] + sliding * gates[..., 2]
        return self.out_proj(mixed.flatten(2))
