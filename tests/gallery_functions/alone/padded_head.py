"""Attention whose head size is padded to what the tiles take."""

import torch

MULTIPLE = 16


def _padded(x):
    dim = x.shape[-1]
    wide = x.new_empty(*x.shape[:-1], -(-dim // MULTIPLE) * MULTIPLE)
    wide[..., :dim] = x
    return wide


def attention(query, key, value, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = _padded(query) @ _padded(key).mT * scale
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(logits, dim=-1) @ value
