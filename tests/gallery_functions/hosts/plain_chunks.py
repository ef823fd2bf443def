"""Memory-efficient attention by plain autograd: chunks of queries, numerators and denominators summed over keys."""

import math

import torch

QUERY_CHUNK = 40
KEY_CHUNK = 56


def _summarize(query, key, value, visible, scale):
    """Maximum, weighted values and sum of weights over one chunk of keys."""
    scores = torch.einsum("...qd,...kd->...qk", query, key) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    peak = scores.amax(-1, keepdim=True).detach()
    weights = torch.exp(scores - peak)
    if visible is not None:
        weights = weights * visible
    return peak, weights @ value, weights.sum(-1, keepdim=True)


def _query_chunk(query, key, value, visible, scale):
    peaks, values, totals = [], [], []
    for start in range(0, key.shape[-2], KEY_CHUNK):
        cols = slice(start, start + KEY_CHUNK)
        seen = None if visible is None else visible[..., cols]
        peak, value_sum, total = _summarize(query, key[..., cols, :], value[..., cols, :], seen, scale)
        peaks.append(peak)
        values.append(value_sum)
        totals.append(total)
    highest = torch.stack(peaks).amax(0)
    factors = [torch.exp(peak - highest) for peak in peaks]
    numerator = sum(factor * part for factor, part in zip(factors, values, strict=True))
    denominator = sum(factor * part for factor, part in zip(factors, totals, strict=True))
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def memory_efficient_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """As torch's scaled_dot_product_attention for boolean masks, in memory linear in the length."""
    if dropout_p:
        raise ValueError("dropout is not supported")
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise ValueError("only boolean masks are supported")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
        v = v.repeat_interleave(q.shape[-3] // v.shape[-3], dim=-3)
    visible = attn_mask
    if is_causal:
        causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        visible = causal if visible is None else visible & causal
    chunks = []
    for start in range(0, q.shape[-2], QUERY_CHUNK):
        rows = slice(start, start + QUERY_CHUNK)
        seen = visible
        if visible is not None and visible.shape[-2] > 1:
            seen = visible[..., rows, :]
        chunks.append(_query_chunk(q[..., rows, :], k, v, seen, scale))
    return torch.cat(chunks, dim=-2).to(dtype)
