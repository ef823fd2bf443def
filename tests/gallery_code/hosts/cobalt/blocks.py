"""From scores of compressed blocks to the ranges of tokens that each query reads.

All of it is a choice and has no gradient.
"""

import torch
from torch import Tensor

from .config import CobaltConfig
from .layers import by_group, masked_softmax, wide_dtype


def visible_blocks(positions: Tensor, num_blocks: int, cfg: CobaltConfig) -> Tensor:
    """[S, N]: a compressed block is seen once its last token is there."""
    last = torch.arange(num_blocks, device=positions.device) * cfg.stride + cfg.block_len - 1
    return last <= positions[:, None]


def block_probs(q: Tensor, keys: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    """Attention of each group to compressed blocks, summed over its heads: [B, G, S, N]."""
    dtype = wide_dtype(q)
    queries = by_group(q, cfg.groups).to(dtype)
    scores = queries @ keys.permute(0, 2, 3, 1).unsqueeze(2).to(dtype) * cfg.head_dim**-0.5
    return masked_softmax(scores, visible_blocks(positions, keys.shape[1], cfg)).sum(2)


def overlap(num_blocks: int, num_select: int, cfg: CobaltConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """[M, K] twice: the compressed blocks that reach into a selection block, and which part of their tokens does."""
    other = torch.arange(num_select, device=like.device)[:, None] * cfg.select_block
    most = (cfg.block_len + cfg.select_block - 1) // cfg.stride + 1
    first = ((other - cfg.block_len) // cfg.stride + 1).clamp(min=0)
    index = first + torch.arange(most, device=like.device)
    low = torch.maximum(index * cfg.stride, other)
    high = torch.minimum(index * cfg.stride + cfg.block_len, other + cfg.select_block)
    part = (high - low).clamp(min=0).to(like.dtype) / cfg.block_len
    return index.clamp(max=num_blocks - 1), part.masked_fill(index >= num_blocks, 0)


def choose(scores: Tensor, positions: Tensor, cfg: CobaltConfig) -> tuple[Tensor, Tensor]:
    """Numbers of the chosen blocks [B, G, S, n], ascending, and which of them are none.

    First and local blocks come before all others. Of blocks that score the same, later ones do: the bias is far
    above what rounding does, so that decoding chooses as prefill.
    """
    number = torch.arange(scores.shape[-1], device=scores.device)
    own = (positions // cfg.select_block)[:, None]
    local = (number > own - cfg.local_blocks) & (number <= own)
    forced = (number < cfg.first_blocks) | local
    ranked = scores + cfg.tie_bias * number
    ranked = ranked.masked_fill(forced, torch.inf).masked_fill(number > own, -torch.inf)
    picked = ranked.topk(min(cfg.top_n, scores.shape[-1]), dim=-1)
    none = picked.values == -torch.inf
    chosen = picked.indices.masked_fill(none, scores.shape[-1]).sort(-1).values
    return chosen, chosen == scores.shape[-1]


def to_ranges(chosen: Tensor, none: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    """Token ranges [start, end) of blocks: [B, G, S, n, 2]. They end at the query; those of no block are empty."""
    start = chosen * cfg.select_block
    end = torch.minimum(start + cfg.select_block, positions[:, None] + 1)
    return torch.stack((start, end), dim=-1).masked_fill(none[..., None], 0)


@torch.no_grad()
def select_ranges(q: Tensor, keys: Tensor, positions: Tensor, total: int, cfg: CobaltConfig) -> Tensor:
    """What each query reads of `total` tokens, by the compressed keys [B, N, G, D]: [B, G, S, n, 2]."""
    num_select = cfg.num_select(total)
    if keys.shape[1]:
        probs = block_probs(q, keys, positions, cfg)
        index, part = overlap(keys.shape[1], num_select, cfg, probs)
        scores = (probs[..., index] * part).sum(-1)
    else:
        scores = q.new_zeros(q.shape[0], cfg.groups, q.shape[1], num_select, dtype=wide_dtype(q))
    chosen, none = choose(scores, positions, cfg)
    return to_ranges(chosen, none, positions, cfg)
