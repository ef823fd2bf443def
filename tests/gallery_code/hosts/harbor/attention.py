"""One attention layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .cache import LinearCache, RingCache
from .config import HarborConfig
from .kernels import Call, attend
from .rope import RotaryEmbedding, rotate
from .utils import RMSNorm


@dataclass
class Context:
    """What all layers of one call share."""

    position_ids: Tensor
    index: Tensor
    segments: Tensor | None = None
    within: Tensor | None = None
    padding: Tensor | None = None


class HarborAttention(nn.Module):
    """Grouped-query attention, windowed or global by its number."""

    def __init__(self, config: HarborConfig, layer: int, rope: RotaryEmbedding) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.rope = rope
        self.window = config.layer_window(layer)
        self.softcap = config.layer_softcap(layer)
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, width, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_width, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.dim, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        has_sink = config.sink_logits and self.window is not None
        self.sink = nn.Parameter(torch.zeros(config.n_heads)) if has_sink else None
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)

    def _project(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = (self.config.head_dim,)
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, *size))).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, *size))).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, *size)).transpose(1, 2)
        tables = self.rope(position_ids, x.dtype)
        return rotate(q, tables), rotate(k, tables), v

    def _call(self, context: Context, k_index: Tensor) -> Call:
        return Call(
            q_index=context.index,
            k_index=k_index,
            scale=self.config.head_dim**-0.5,
            window=self.window,
            sink_tokens=self.config.sink_tokens,
            softcap=self.softcap,
            sink_logits=self.sink,
            segments=context.segments,
            within=context.within,
            padding=context.padding,
            dropout=self.config.dropout if self.training else 0.0,
        )

    def forward(self, x: Tensor, context: Context, cache: RingCache | LinearCache | None = None) -> Tensor:
        """[B, T, dim] to [B, T, dim]; with a cache the tokens go on from what it holds."""
        q, k, v = self._project(x, context.position_ids)
        k_index = context.index
        if cache is not None:
            k, v, k_index = cache.update(k, v, context.index)
        out = attend(q, k, v, self._call(context, k_index), self.config.path)
        return self.o_proj(out.transpose(1, 2).flatten(2))
