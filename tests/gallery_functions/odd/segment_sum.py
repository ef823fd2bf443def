"""Attention over pairs of queries and keys that see each other, as graph networks have it: gather, scatter, no mask."""

import torch


def attention(q, k, v, softmax_scale=None, causal=True, window_size=(-1, -1)):
    """[B, S, H, D] with as many keys as queries; causal, or with a window of past keys."""
    if q.shape[1:3] != k.shape[1:3]:
        raise ValueError(f"only self-attention without groups, got {tuple(q.shape)} and {tuple(k.shape)}")
    seqlen = q.shape[1]
    rows, cols = torch.tril_indices(seqlen, seqlen) if causal else torch.ones(seqlen, seqlen).nonzero().T
    if window_size[0] >= 0:
        near = rows - cols <= window_size[0]
        rows, cols = rows[near], cols[near]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    logits = (q[:, rows] * k[:, cols]).sum(-1) * scale  # [B, pairs, H]
    index = rows[None, :, None].expand_as(logits)
    peak = logits.new_full((q.shape[0], seqlen, q.shape[2]), -torch.inf)
    peak = peak.scatter_reduce(1, index, logits.detach(), "amax")
    weights = torch.exp(logits - peak[:, rows])
    total = torch.zeros_like(peak).scatter_add(1, index, weights)
    weighted = weights[..., None] * v[:, cols]
    summed = torch.zeros_like(v).index_add(1, rows, weighted)
    return summed / total[..., None]
