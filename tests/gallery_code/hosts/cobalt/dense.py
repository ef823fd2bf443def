"""The two branches with a fixed pattern: compressed blocks, and the sliding window."""

import torch
from torch import Tensor

from . import env
from .blocks import visible_blocks
from .config import CobaltConfig
from .layers import by_group, from_group, masked_attention, per_head, sdpa

# ---------------------------------------------------------------------------------------------- compressed


def compressed_loop(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    grouped = by_group(q, cfg.groups)
    pieces = []
    for s, position in enumerate(positions.tolist()):
        count = min(cfg.num_blocks(position + 1), k.shape[1])
        keys, values = (x[:, :count].transpose(1, 2).unsqueeze(2) for x in (k, v))
        seen = torch.ones(1, count, dtype=torch.bool, device=q.device)
        query = grouped[:, :, :, s : s + 1]
        pieces.append(masked_attention(query, keys, values, seen) if count else torch.zeros_like(query))
    return from_group(torch.cat(pieces, dim=3))


def compressed_mask(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    keys, values = (x.transpose(1, 2).unsqueeze(2) for x in (k, v))
    mask = visible_blocks(positions, k.shape[1], cfg)
    return from_group(masked_attention(by_group(q, cfg.groups), keys, values, mask))


def compressed_sdpa(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    heads = q.shape[2]
    mask = visible_blocks(positions, k.shape[1], cfg)
    return sdpa(q.transpose(1, 2), per_head(k, heads), per_head(v, heads), mask).transpose(1, 2)


COMPRESSED = {"loop": compressed_loop, "mask": compressed_mask, "sdpa": compressed_sdpa}


def compressed_attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cfg: CobaltConfig) -> Tensor:
    """k and v [B, N, G, D] are compressed blocks; queries before the end of the first one get zeros."""
    if not k.shape[1]:
        return torch.zeros_like(q)
    name = env.choice("COBALT_COMPRESSED", cfg.compressed_impl, ("auto", *COMPRESSED))
    if name == "auto":
        name = "mask"
    return env.call("compressed", name, COMPRESSED, q, k, v, positions, cfg)


# ------------------------------------------------------------------------------------------------- sliding


def window_mask(positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """[S, T]: the query's own token and the window - 1 before it."""
    distance = positions[:, None] - key_positions
    return (distance >= 0) & (distance < window)


def sliding_loop(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, base: int, cfg: CobaltConfig) -> Tensor:
    grouped = by_group(q, cfg.groups)
    pieces = []
    for s, position in enumerate(positions.tolist()):
        high = position + 1 - base
        low = max(0, high - cfg.window)
        keys, values = (x[:, low:high].transpose(1, 2).unsqueeze(2) for x in (k, v))
        seen = torch.ones(1, high - low, dtype=torch.bool, device=q.device)
        pieces.append(masked_attention(grouped[:, :, :, s : s + 1], keys, values, seen))
    return from_group(torch.cat(pieces, dim=3))


def sliding_mask(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, base: int, cfg: CobaltConfig) -> Tensor:
    heads = q.shape[2]
    mask = window_mask(positions, base + torch.arange(k.shape[1], device=k.device), cfg.window)
    return sdpa(q.transpose(1, 2), per_head(k, heads), per_head(v, heads), mask).transpose(1, 2)


def sliding_banded(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, base: int, cfg: CobaltConfig) -> Tensor:
    """Chunks of queries, each with the keys that one of them sees."""
    grouped = by_group(q, cfg.groups)
    before = k.shape[1] - q.shape[1]  # keys older than the first query
    key_positions = base + torch.arange(k.shape[1], device=k.device)
    pieces = []
    for low in range(0, q.shape[1], cfg.query_chunk):
        high = min(low + cfg.query_chunk, q.shape[1])
        span = slice(max(0, before + low - cfg.window + 1), before + high)
        keys, values = (x[:, span].transpose(1, 2).unsqueeze(2) for x in (k, v))
        mask = window_mask(positions[low:high], key_positions[span], cfg.window)
        pieces.append(masked_attention(grouped[:, :, :, low:high], keys, values, mask))
    return from_group(torch.cat(pieces, dim=3))


SLIDING = {"loop": sliding_loop, "mask": sliding_mask, "banded": sliding_banded}


def sliding_attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, base: int, cfg: CobaltConfig) -> Tensor:
    """k and v [B, T, G, D] begin at position `base` and end with the last query's own."""
    name = env.choice("COBALT_SLIDING", cfg.sliding_impl, ("auto", *SLIDING))
    if name == "auto":
        name = "mask" if k.shape[1] <= cfg.dense_up_to else "banded"
    return env.call("sliding", name, SLIDING, q, k, v, positions, base, cfg)
