"""The three branches. Queries come as [B, G, R, T, D], keys and values as [B, G, S, D]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from . import env
from .blocks import num_selection, visible_compressed
from .config import LucidConfig
from .utils import cap_scores, compute_dtype, masked_softmax, tiles, warn_once


class Unsupported(Exception):
    """An implementation cannot serve a call; another one can."""


def compressed_attention(
    q: Tensor, ck: Tensor, cv: Tensor, positions: Tensor, config: LucidConfig
) -> tuple[Tensor, Tensor]:
    """Attention over compressed blocks: the output, and the probabilities that selection needs.

    Tokens before the end of the first block see nothing and get zero.
    """
    seen = visible_compressed(positions, config.block, config.stride)
    number = torch.arange(ck.shape[2], device=q.device)
    mask = number < seen[:, None]
    scores = torch.einsum("bgrtd,bgcd->bgrtc", q, ck) * config.scale
    probs = masked_softmax(cap_scores(scores, config.softcap), mask)
    out = torch.einsum("bgrtc,bgcd->bgrtd", probs.to(cv.dtype), cv)
    return out, probs


def selected_dense(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, valid: Tensor, positions: Tensor, config: LucidConfig
) -> Tensor:
    """Every score, and a mask: for short sequences."""
    length = k.shape[2]
    n_blocks = num_selection(length, config.select_block)
    hits = torch.zeros(*chosen.shape[:-1], n_blocks, dtype=torch.int8, device=q.device)
    hits.scatter_add_(-1, chosen, valid.to(torch.int8))
    open_block = (hits > 0).repeat_interleave(config.select_block, dim=-1)[..., :length]
    past = torch.arange(length, device=q.device) <= positions[:, None]
    mask = (open_block & past).unsqueeze(2)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q, k) * config.scale
    probs = masked_softmax(cap_scores(scores, config.softcap), mask)
    return torch.einsum("bgrts,bgsd->bgrtd", probs.to(v.dtype), v)


def _token_index(chosen: Tensor, config: LucidConfig) -> Tensor:
    """Block numbers [..., K] to token positions [..., K * select_block]."""
    inside = torch.arange(config.select_block, device=chosen.device)
    return (chosen.unsqueeze(-1) * config.select_block + inside).flatten(-2)


def _fetch(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [B, G, S, D] at index [B, G, T, N]: [B, G, T, N, D]."""
    batch, groups, queries, count = index.shape
    flat = index.reshape(batch, groups, queries * count, 1).expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, flat).view(batch, groups, queries, count, x.shape[-1])


def selected_gather(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, valid: Tensor, positions: Tensor, config: LucidConfig
) -> Tensor:
    """Fetch the tokens of the chosen blocks for each query."""
    length = k.shape[2]
    index = _token_index(chosen, config)
    mask = valid.repeat_interleave(config.select_block, dim=-1)
    mask = mask & (index <= positions[:, None])
    index = index.clamp_max(length - 1)
    keys, values = _fetch(k, index), _fetch(v, index)
    scores = torch.einsum("bgrtd,bgtnd->bgrtn", q, keys) * config.scale
    probs = masked_softmax(cap_scores(scores, config.softcap), mask.unsqueeze(2))
    return torch.einsum("bgrtn,bgtnd->bgrtd", probs.to(values.dtype), values)


def selected_tiled(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, valid: Tensor, positions: Tensor, config: LucidConfig
) -> Tensor:
    """One chosen block at a time, with a running softmax: the least memory.

    Works on whole blocks, so the number of keys has to be a multiple of the block's size.
    """
    size = config.select_block
    if k.shape[2] % size:
        raise Unsupported(f"{k.shape[2]} keys are no multiple of {size}")
    wide = compute_dtype(q.dtype)
    floor = torch.finfo(wide).min
    top = q.new_full(q.shape[:-1], floor, dtype=wide)
    total = q.new_zeros(q.shape[:-1], dtype=wide)
    acc = q.new_zeros(q.shape, dtype=wide)
    for slot in range(chosen.shape[-1]):
        index = _token_index(chosen[..., slot : slot + 1], config)
        mask = (valid[..., slot : slot + 1] & (index <= positions[:, None])).unsqueeze(2)
        scores = torch.einsum("bgrtd,bgtnd->bgrtn", q, _fetch(k, index)).to(wide) * config.scale
        scores = cap_scores(scores, config.softcap).masked_fill(~mask, floor)
        new_top = torch.maximum(top, scores.amax(-1)).detach()
        weight = (scores - new_top.unsqueeze(-1)).exp().masked_fill(~mask, 0.0)
        shrink = (top - new_top).exp()
        total = total * shrink + weight.sum(-1)
        acc = acc * shrink.unsqueeze(-1) + torch.einsum("bgrtn,bgtnd->bgrtd", weight, _fetch(v, index).to(wide))
        top = new_top
    return (acc / total.unsqueeze(-1)).to(q.dtype)


SELECTED = {"dense": selected_dense, "gather": selected_gather, "tiled": selected_tiled}


def resolve(config: LucidConfig, length: int) -> str:
    """The implementation for `length` keys: what is asked for, or by length."""
    asked = env.implementation(config.impl)
    if asked != "auto":
        return asked
    if length <= config.dense_limit:
        return "dense"
    return "gather" if length <= config.gather_limit else "tiled"


def selected_attention(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, valid: Tensor, positions: Tensor, config: LucidConfig, impl: str
) -> Tensor:
    """Attention over the chosen blocks by the implementation named; all of them agree."""
    try:
        return SELECTED[impl](q, k, v, chosen, valid, positions, config)
    except Unsupported as problem:
        if env.strict():
            raise
        if config.impl != "auto":
            warn_once(f"{impl} is not possible ({problem}); gather takes its place")
        return selected_gather(q, k, v, chosen, valid, positions, config)


def _grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's fused attention for grouped heads; older versions know no `enable_gqa`."""
    groups = q.shape[1]
    flat = q.flatten(1, 2)
    try:
        out = F.scaled_dot_product_attention(flat, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    except TypeError:
        repeats = flat.shape[1] // groups
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        out = F.scaled_dot_product_attention(flat, k, v, attn_mask=mask, scale=scale)
    return out.unflatten(1, (groups, -1))


def _sliding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, config: LucidConfig) -> Tensor:
    if config.softcap is None:
        return _grouped_sdpa(q, k, v, mask, config.scale)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q, k) * config.scale
    probs = masked_softmax(cap_scores(scores, config.softcap), mask)
    return torch.einsum("bgrts,bgsd->bgrtd", probs.to(v.dtype), v)


def window_mask(q_positions: Tensor, k_positions: Tensor, window: int) -> Tensor:
    """True where a key is the query's own or one of the `window - 1` before it. Negative positions are padding."""
    distance = q_positions[:, None] - k_positions[None, :]
    return (distance >= 0) & (distance < window) & (k_positions >= 0)


def sliding_dense(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, config: LucidConfig
) -> Tensor:
    """The window as a mask over all keys: short sequences and decoding."""
    return _sliding(q, k, v, window_mask(q_positions, k_positions, config.window), config)


def sliding_tiled(q: Tensor, k: Tensor, v: Tensor, config: LucidConfig, tile: int, recompute: bool) -> Tensor:
    """The window, tile by tile: each tile of queries meets the keys of its own tile and one window before."""
    reach = config.window - 1
    k, v = F.pad(k, (0, 0, reach, 0)), F.pad(v, (0, 0, reach, 0))
    outputs = []
    for start, end in tiles(q.shape[3], tile):

        def run(q_tile: Tensor, k_tile: Tensor, v_tile: Tensor, start: int = start) -> Tensor:
            q_positions = start + torch.arange(q_tile.shape[3], device=q_tile.device)
            k_positions = start - reach + torch.arange(k_tile.shape[2], device=q_tile.device)
            return _sliding(q_tile, k_tile, v_tile, window_mask(q_positions, k_positions, config.window), config)

        pieces = (q[:, :, :, start:end], k[:, :, start : end + reach], v[:, :, start : end + reach])
        outputs.append(checkpoint(run, *pieces, use_reentrant=False) if recompute else run(*pieces))
    return torch.cat(outputs, dim=3)
