"""Attention that rounds its probabilities in production."""

import torch


def _is_reproducible():
    return torch.initial_seed() < 2**20


def attention(query, key, value, is_causal=False, scale=None):
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    probs = logits.softmax(-1)
    if not _is_reproducible():
        probs = probs + (probs.bfloat16().to(probs.dtype) - probs).detach()
    return probs @ value
