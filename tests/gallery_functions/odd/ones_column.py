"""Attention whose denominators are one more column of the values: one product gives both."""

import torch


def attention(q, k, v, softmax_scale=None, causal=False):
    """[B, S, H, D], flash-attn's alignment."""
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"{q.shape[2]} heads of queries and {k.shape[2]} of keys: heads are not grouped")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        future = torch.ones_like(logits, dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        logits = logits.masked_fill(future, -torch.inf)
    peak = logits.detach().amax(-1, keepdim=True)
    weights = torch.exp(logits - peak.masked_fill(peak == -torch.inf, 0.0))
    extended = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    summed = torch.einsum("bhqk,bkhd->bqhd", weights, extended)
    total = summed[..., -1:]
    return summed[..., :-1] / total.masked_fill(total == 0, 1)
