"""The attention of a layer: projections, three ways to attend, and gates that mix them."""

import torch
from torch import Tensor, nn

from .blocks import BlockTokens, by_mask, choose, coarse, gathered
from .cache import LayerCache, PagedCache, RingCache
from .config import TundraConfig
from .flags import dense, query_chunk
from .layout import Layout
from .rope import rotate, turn
from .utils import RMSNorm, spans, take_rows
from .window import NearTokens, sliding

BRANCHES = 3


class TundraAttention(nn.Module):
    """Grouped-query attention on block means, on chosen blocks and on a sliding window.

    Blocks have keys and values of their own (far), the window has others (near). A query's gates, one per head and
    branch, weigh what the branches give.
    """

    def __init__(self, cfg: TundraConfig) -> None:
        """Attention of `cfg.n_heads` query heads."""
        super().__init__()
        self.cfg = cfg
        self.query = nn.Linear(cfg.dim, cfg.n_heads * cfg.head_dim, bias=False)
        self.far = nn.Linear(cfg.dim, 2 * cfg.n_kv * cfg.head_dim, bias=False)
        self.near = nn.Linear(cfg.dim, 2 * cfg.n_kv * cfg.head_dim, bias=False)
        self.query_norm = RMSNorm(cfg.head_dim, cfg.norm_eps)
        self.far_norm = RMSNorm(cfg.head_dim, cfg.norm_eps)
        self.near_norm = RMSNorm(cfg.head_dim, cfg.norm_eps)
        self.gate = nn.Linear(cfg.dim, cfg.n_heads * BRANCHES)
        self.out = nn.Linear(cfg.n_heads * cfg.head_dim, cfg.dim, bias=False)

    def _queries(self, x: Tensor) -> Tensor:
        """Normed queries before rotation, [B, S, H, d]."""
        return self.query_norm(self.query(x).unflatten(-1, (self.cfg.n_heads, self.cfg.head_dim)))

    def _pair(self, projected: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """Normed keys before rotation, and values, [B, S, G, d] each."""
        keys, values = projected.unflatten(-1, (2, self.cfg.n_kv, self.cfg.head_dim)).unbind(-3)
        return norm(keys), values

    def _grouped(self, heads: Tensor) -> Tensor:
        """[B, S, H, d] as [B, S, G, R, d]: the heads of a group are consecutive."""
        return heads.unflatten(2, (self.cfg.n_kv, self.cfg.group))

    def _far_branches(self, plain: Tensor, turned: Tensor, blocks: BlockTokens, layout: Layout) -> list[Tensor]:
        """What block means and chosen blocks give, [B, S, G, R, d] each."""
        cfg = self.cfg
        read = by_mask if dense(layout.offset + plain.shape[1], cfg.dense_up_to) else gathered
        coarse_parts, chosen_parts = [], []
        for start, end in spans(plain.shape[1], query_chunk(cfg.query_chunk)):
            part = layout.part(start, end)
            mixed, logits = coarse(plain[:, start:end], blocks, part)
            coarse_parts.append(mixed)
            chosen_parts.append(read(turned[:, start:end], blocks, choose(logits, part, cfg), part))
        return [torch.cat(coarse_parts, dim=1), torch.cat(chosen_parts, dim=1)]

    def _mix(self, x: Tensor, branches: list[Tensor]) -> Tensor:
        """The branches, weighed by gates and projected."""
        gates = self.gate(x).sigmoid().unflatten(-1, (self.cfg.n_kv, self.cfg.group, BRANCHES))
        mixed = (torch.stack(branches, dim=-1) * gates.unsqueeze(-2)).sum(-1)
        return self.out(mixed.flatten(2))

    def _whole_blocks(self, keys: Tensor, plain_keys: Tensor, values: Tensor, layout: Layout) -> BlockTokens:
        """Blocks of whole rows; the tokens are those of all rows, one row after the other."""
        batch, length = keys.shape[:2]
        wide = torch.promote_types(keys.dtype, torch.float32)
        place = layout.place.clamp(0, length - 1)
        means = [take_rows(item, place).to(wide).mean(2) for item in (plain_keys, values)]
        slots = place + length * torch.arange(batch, device=keys.device)[:, None, None]
        return BlockTokens(keys.flatten(0, 1), values.flatten(0, 1), slots, *means)

    def _cached_blocks(self, pages: PagedCache) -> BlockTokens:
        """Blocks of all tokens that a cache has; means of a block that is not full are too small, and not seen."""
        means = [sums / self.cfg.block for sums in (pages.key_sums, pages.value_sums)]
        return BlockTokens(pages.keys.flatten(0, 1), pages.values.flatten(0, 1), pages.slots(), *means)

    def _whole_near(self, keys: Tensor, values: Tensor, layout: Layout) -> NearTokens:
        """The window's tokens of whole rows, and the sinks of each query's document."""
        sink = layout.start.unsqueeze(-1) + torch.arange(self.cfg.sinks, device=keys.device)
        sink = sink.clamp(max=keys.shape[1] - 1)
        return NearTokens(keys, values, 0, take_rows(keys, sink), take_rows(values, sink))

    def _cached_near(self, keys: Tensor, values: Tensor, ring: RingCache) -> NearTokens:
        """The window's tokens: those in the ring and the new ones, which it then keeps."""
        old_keys, old_values, first = ring.latest()
        ring.append(keys, values)
        keys, values = torch.cat([old_keys, keys], dim=1), torch.cat([old_values, values], dim=1)
        return NearTokens(keys, values, first, ring.sink_keys.unsqueeze(1), ring.sink_values.unsqueeze(1))

    def forward(self, x: Tensor, layout: Layout, cache: LayerCache | None = None) -> Tensor:
        """[B, S, D] in and out; with a cache, tokens after those in it, which it then keeps."""
        cfg = self.cfg
        cos, sin = turn(layout.position, cfg, x)
        plain = self._queries(x)
        far_plain, far_values = self._pair(self.far(x), self.far_norm)
        near_keys, near_values = self._pair(self.near(x), self.near_norm)
        far_keys, near_keys = (rotate(keys, cos, sin, cfg.rope_dim) for keys in (far_plain, near_keys))
        if cache is None:
            blocks = self._whole_blocks(far_keys, far_plain, far_values, layout)
            near = self._whole_near(near_keys, near_values, layout)
        else:
            cache.pages.append(far_keys, far_plain, far_values)
            blocks = self._cached_blocks(cache.pages)
            near = self._cached_near(near_keys, near_values, cache.ring)
        turned = self._grouped(rotate(plain, cos, sin, cfg.rope_dim))
        branches = self._far_branches(self._grouped(plain), turned, blocks, layout)
        branches.append(sliding(turned, near, layout, cfg, query_chunk(cfg.query_chunk)))
        return self._mix(x, branches)
