"""Decoding by one masked product over the whole cache; new tokens are scattered into it."""

import torch


def attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, softmax_scale=None, causal=False):
    _, num_new, heads, dim = q.shape
    lengths = cache_seqlens.long()
    if k is not None:
        index = (lengths[:, None] + torch.arange(k.shape[1]))[..., None, None].expand_as(k)
        k_cache.scatter_(1, index, k)
        v_cache.scatter_(1, index, v)
        lengths = lengths + k.shape[1]
    cols = torch.arange(k_cache.shape[1])
    last = lengths[:, None] - 1 if not causal else lengths[:, None] - num_new + torch.arange(num_new)
    visible = cols <= last[..., None]  # [B, n or 1, S]
    groups = heads // k_cache.shape[2]
    logits = torch.einsum("bqhgd,bkhd->bhgqk", q.unflatten(2, (-1, groups)), k_cache)
    logits = logits * (dim**-0.5 if softmax_scale is None else softmax_scale)
    logits = torch.where(visible[:, None, None], logits.float(), torch.finfo(torch.float32).min)
    weights = torch.softmax(logits, -1).to(q.dtype)
    # what lies behind a row's length may be anything, NaN too
    written = cols < lengths[:, None]
    values = torch.where(written[..., None, None], v_cache, 0)
    return torch.einsum("bhgqk,bkhd->bqhgd", weights, values).flatten(2, 3)
