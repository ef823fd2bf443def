"""Packed attention as one dense product under a block-diagonal mask."""

import torch


def attention(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
):
    def places(cu, total):
        sequence = torch.searchsorted(cu, torch.arange(total, dtype=cu.dtype), right=True) - 1
        return sequence, cu[1:][sequence] - torch.arange(total)  # how far before the end

    seq_q, left_q = places(cu_seqlens_q, q.shape[0])
    seq_k, left_k = places(cu_seqlens_k, k.shape[0])
    visible = seq_q[:, None] == seq_k[None, :]
    ahead = left_q[:, None] - left_k[None, :]  # of the query's own key
    if causal:
        visible &= ahead <= 0
    elif window_size[1] >= 0:
        visible &= ahead <= window_size[1]
    if window_size[0] >= 0:
        visible &= ahead >= -window_size[0]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    groups = q.shape[1] // k.shape[1]
    logits = torch.einsum("qhgd,khd->hgqk", q.unflatten(1, (-1, groups)), k) * scale
    weights = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1) * visible
    return torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)
