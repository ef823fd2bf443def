"""Attention whose denominators are one more column of the values: one product gives both."""

import torch


def attention(q, k, v, softmax_scale=None, causal=False):
    """[B, S, H, D], flash-attn's alignment."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = torch.exp(logits - _row_max(logits, causal).detach())
    if causal:
        weights = weights.tril(k.shape[1] - q.shape[1])
    extended = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    summed = torch.einsum("bhqk,bkhd->bqhd", weights, extended)
    total = summed[..., -1:]
    return summed[..., :-1] / total.masked_fill(total == 0, 1)


def _row_max(logits, causal):
    if causal:
        future = torch.ones_like(logits, dtype=torch.bool).triu(1 + logits.shape[-1] - logits.shape[-2])
        logits = logits.masked_fill(future, torch.finfo(logits.dtype).min)
        # Rows without a key take any maximum that keeps exp finite.
        return logits.amax(-1, keepdim=True).masked_fill(future.all(-1, keepdim=True), torch.inf)
    return logits.amax(-1, keepdim=True)
