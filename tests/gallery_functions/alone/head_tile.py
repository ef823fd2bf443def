"""Attention with tiles of 64 features, in flash-attn's layout."""

import torch

BLOCK_D = 64


def _dot(q, k):
    """Logits, a tile of features at a time."""
    total = 0.0
    for start in range(0, min(q.shape[-1], BLOCK_D), BLOCK_D):
        tile = slice(start, start + BLOCK_D)
        total = total + torch.einsum("bqhd,bkhd->bhqk", q[..., tile], k[..., tile])
    return total


def flash_attention(q, k, v, softmax_scale=None, causal=False):
    logits = _dot(q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        future = torch.ones_like(logits, dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        logits = logits.masked_fill(future, torch.finfo(q.dtype).min)
    return torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), v)
