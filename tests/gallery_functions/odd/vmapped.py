"""Attention of one head, mapped over batch and heads by torch.vmap."""

import torch


def _one_head(q, k, v, scale, hidden):
    logits = (q * scale) @ k.T
    logits = torch.where(hidden, -torch.inf, logits)
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


_over_heads = torch.vmap(_one_head, in_dims=(0, 0, 0, None, None))
_over_batch = torch.vmap(_over_heads, in_dims=(0, 0, 0, None, None))


def attention(query, key, value, is_causal=False, scale=None):
    hidden = torch.zeros(query.shape[-2], key.shape[-2], dtype=torch.bool)
    if is_causal:
        hidden = torch.ones_like(hidden).triu(1)
    return _over_batch(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, hidden)
