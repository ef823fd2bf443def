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
    len_q, len_k = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    groups = q.shape[1] // k.shape[1]
    qp = _pad(q, bounds_q, max_seqlen_q)
    kp, vp = (_pad(x, bounds_k, max_seqlen_k).repeat_interleave(groups, 2) for x in (k, v))
    logits = torch.einsum("bqhd,bkhd->bhqk", qp, kp) * (softmax_scale or q.shape[-1] ** -0.5)
    cols = torch.arange(max_seqlen_k)
    visible = (cols < len_k[:, None])[:, None, :].expand(-1, max_seqlen_q, -1)
    if causal:
        rows = torch.arange(max_seqlen_q)[None, :] + (len_k - len_q)[:, None]
        visible = visible & (cols <= rows[..., None])
    logits = logits.masked_fill(~visible[:, None], torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1).masked_fill(~visible[:, None], 0.0)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, vp)
    return torch.cat([out[i, :length] for i, length in enumerate(len_q.tolist())])
