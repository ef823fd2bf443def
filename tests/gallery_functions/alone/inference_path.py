"""Attention with a path of its own for inference."""

import torch


def attention(query, key, value, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    needs_graph = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if not needs_graph:
        logits = torch.baddbmm(query.new_zeros(1), query.flatten(0, 1), key.flatten(0, 1).mT, beta=0, alpha=scale)
        return torch.bmm(logits.softmax(-1), value.flatten(0, 1)).unflatten(0, query.shape[:2])
    logits = query @ key.mT * scale
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1) @ value
