"""Attention over two halves of the keys, merged by their logsumexps as context parallelism does."""

import torch


def _half(q, k, v, visible, scale):
    logits = (q @ k.mT * scale).masked_fill(~visible, torch.finfo(q.dtype).min)
    lse = torch.logsumexp(logits, -1, keepdim=True)
    return torch.exp(logits - lse) @ v, lse


def ring_attention(q, k, v, is_causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if is_causal:
        visible = visible.tril()
    cut = max(k.shape[-2] // 2, 1)
    out, lse = _half(q, k[..., :cut, :], v[..., :cut, :], visible[:, :cut], scale)
    if cut < k.shape[-2]:
        out_2, lse_2 = _half(q, k[..., cut:, :], v[..., cut:, :], visible[:, cut:], scale)
        # sigmoid(lse_2 - lse) is the second half's share
        out = out - torch.sigmoid(lse_2 - lse) * (out - out_2)
    return out
