"""Decoding against a cache of keys and values, split over the keys and combined by their logsumexps."""

import math

import torch

SPLIT = 32


def _append(cache, new, lengths):
    """Write new tokens [B, n, Hk, D] behind each row's own length."""
    n = new.shape[1]
    for row in range(new.shape[0]):
        start = int(lengths[row])
        cache[row, start : start + n] = new[row].to(cache.dtype)


def _partial(q, k, v, visible, scale):
    """Normalised output and logsumexp over one split of the keys; rows without a key have -inf."""
    s = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * scale
    s = s.masked_fill(~visible[:, None, None], -math.inf)
    lse = torch.logsumexp(s, -1)
    base = lse.masked_fill(lse == -math.inf, 0.0)
    p = torch.exp(s - base[..., None])
    return torch.einsum("bhgqk,bkhd->bhgqd", p, v), lse


@torch.no_grad()
def attention_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    cache_seqlens=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
):
    """q [B, n, H, D] against caches [B, S, Hk, D], of which each row's first `cache_seqlens` tokens are filled.

    With `k` and `v` [B, n, Hk, D] these are written behind them in place, and seen.
    """
    batch, num_new, num_heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    if cache_seqlens is None:
        cache_seqlens = k_cache.shape[1] if k is None else 0
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    total = cache_seqlens.clone()
    if k is not None:
        _append(k_cache, k, cache_seqlens)
        _append(v_cache, v, cache_seqlens)
        total += k.shape[1]
    scale = dim**-0.5 if softmax_scale is None else softmax_scale
    work = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(work).unflatten(2, (kv_heads, num_heads // kv_heads))
    left, right = window_size[0], 0 if causal else window_size[1]

    position = total[:, None] - num_new + torch.arange(num_new, device=q.device)
    outs, lses = [], []
    longest = int(total.max())
    for start in range(0, longest, SPLIT):
        stop = min(start + SPLIT, longest)
        cols = torch.arange(start, stop, device=q.device)
        visible = (cols[None, :] < total[:, None])[:, None, :].expand(batch, num_new, -1)
        if right >= 0:
            visible = visible & (cols <= position[..., None] + right)
        if left >= 0:
            visible = visible & (cols >= position[..., None] - left)
        out, lse = _partial(grouped, k_cache[:, start:stop].to(work), v_cache[:, start:stop].to(work), visible, scale)
        outs.append(out)
        lses.append(lse)
    if not outs:
        return torch.zeros(batch, num_new, num_heads, v_cache.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.stack(lses)
    peak = lse.amax(0)
    weight = torch.exp(lse - peak.masked_fill(peak == -math.inf, 0.0))
    total_weight = weight.sum(0)
    out = (weight[..., None] * torch.stack(outs)).sum(0)
    out = out / total_weight.masked_fill(total_weight == 0, 1.0)[..., None]
    return out.permute(0, 3, 1, 2, 4).reshape(batch, num_new, num_heads, -1).to(q.dtype)
