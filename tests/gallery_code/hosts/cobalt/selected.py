"""The selected branch: each query attends to the tokens of its ranges.

loop     one query at a time, the reference
gather   tokens of the ranges side by side, a chunk of queries at a time
sdpa     all tokens and a mask; the fastest for short sequences
"""

import torch
from torch import Tensor

from . import env
from .config import CobaltConfig
from .layers import by_group, from_group, masked_attention, per_head, sdpa


def selected_loop(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, cfg: CobaltConfig) -> Tensor:
    per_group = q.shape[2] // k.shape[2]
    bounds = ranges.tolist()
    rows = []
    for b in range(q.shape[0]):
        tokens = []
        for s in range(q.shape[1]):
            heads = []
            for g in range(k.shape[2]):
                index = [i for start, end in bounds[b][g][s] for i in range(start, end)]
                query = q[b, s, g * per_group : (g + 1) * per_group]
                if not index:
                    heads.append(torch.zeros_like(query))
                    continue
                seen = torch.ones(per_group, len(index), dtype=torch.bool, device=q.device)
                heads.append(masked_attention(query, k[b, index, g], v[b, index, g], seen))
            tokens.append(torch.cat(heads))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """x [B, T, G, D] at index [B, G, S, K] -> [B, G, S, K, D]."""
    batch, groups, queries, width = index.shape
    flat = index.reshape(batch, groups, -1, 1).expand(-1, -1, -1, x.shape[-1])
    return x.transpose(1, 2).gather(2, flat).view(batch, groups, queries, width, -1)


def selected_gather(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, cfg: CobaltConfig) -> Tensor:
    grouped = by_group(q, k.shape[2]).transpose(2, 3)  # [B, G, S, R, D]
    within = torch.arange(cfg.select_block, device=q.device)
    pieces = []
    for low in range(0, q.shape[1], cfg.query_chunk):
        part = slice(low, low + cfg.query_chunk)
        start, end = ranges[:, :, part, :, :1], ranges[:, :, part, :, 1:]
        index = start + within
        seen = (index < end).flatten(-2)
        index = index.clamp(max=k.shape[1] - 1).flatten(-2)
        keys, values = gather_tokens(k, index), gather_tokens(v, index)
        pieces.append(masked_attention(grouped[:, :, part], keys, values, seen.unsqueeze(-2)))
    return from_group(torch.cat(pieces, dim=2).transpose(2, 3))


def ranges_to_mask(ranges: Tensor, total: int, cfg: CobaltConfig) -> Tensor:
    """[B, G, S, n, 2] -> [B, G, S, total]."""
    batch, groups, queries, _, _ = ranges.shape
    start, end = ranges.unbind(-1)
    blocks = torch.zeros(batch, groups, queries, cfg.num_select(total) + 1, dtype=torch.bool, device=ranges.device)
    spare = torch.full_like(start, blocks.shape[-1] - 1)
    blocks = blocks.scatter(-1, torch.where(end > start, start // cfg.select_block, spare), True)
    tokens = blocks[..., :-1].repeat_interleave(cfg.select_block, dim=-1)[..., :total]
    last = end.amax(-1, keepdim=True)
    return tokens & (torch.arange(total, device=ranges.device) < last)


def selected_sdpa(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, cfg: CobaltConfig) -> Tensor:
    heads = q.shape[2]
    mask = ranges_to_mask(ranges, k.shape[1], cfg).repeat_interleave(heads // k.shape[2], dim=1)
    return sdpa(q.transpose(1, 2), per_head(k, heads), per_head(v, heads), mask).transpose(1, 2)


IMPLEMENTATIONS = {"loop": selected_loop, "gather": selected_gather, "sdpa": selected_sdpa}


def selected_attention(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, cfg: CobaltConfig) -> Tensor:
    """q [B, S, H, D], k and v [B, T, G, D] from position 0 on, ranges [B, G, S, n, 2] -> [B, S, H, D]."""
    name = env.choice("COBALT_SELECTED", cfg.selected_impl, ("auto", *IMPLEMENTATIONS))
    if name == "auto":
        dense = q.shape[1] > 1 and (k.shape[1] <= cfg.dense_up_to or torch.compiler.is_compiling())
        name = "sdpa" if dense else "gather"
    return env.call("selected", name, IMPLEMENTATIONS, q, k, v, ranges, cfg)
