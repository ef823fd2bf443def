"""Packed attention by padding to a batch, attending there, and taking the padding out again."""

from itertools import pairwise

import torch


def _pad(x, bounds, longest):
    out = x.new_zeros(len(bounds) - 1, longest, *x.shape[1:])
    for i, (start, stop) in enumerate(pairwise(bounds)):
        out[i, : stop - start] = x[start:stop]
    return out


def varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):
    bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    qp, kp, vp = _pad(q, bounds_q, max_seqlen_q), _pad(k, bounds_k, max_seqlen_k), _pad(v, bounds_k, max_seqlen_k)
    logits = torch.einsum("bqhd,bkhd->bhqk", qp, kp) * (softmax_scale or q.shape[-1] ** -0.5)
    if causal:
        rows = torch.arange(max_seqlen_q)[None, :] + (cu_seqlens_k.diff() - cu_seqlens_q.diff())[:, None]
        hidden = torch.arange(max_seqlen_k) > rows[..., None]
        logits = logits.masked_fill(hidden[:, None], torch.finfo(logits.dtype).min)
    out = torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), vp)
    return torch.cat([out[i, : stop - start] for i, (start, stop) in enumerate(pairwise(bounds_q))])
