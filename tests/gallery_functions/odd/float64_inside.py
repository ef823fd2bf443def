"""Attention that computes in float64 whatever it is given, through log_softmax."""

import torch
import torch.nn.functional as F


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    assert dropout_p == 0.0, "no dropout"
    q, k, v = query.double(), key.double(), value.double()
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(query.shape[-1] ** -0.5 if scale is None else scale)
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    if is_causal:
        hidden = ~hidden.new_ones(hidden.shape).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    elif attn_mask is not None:
        logits = logits + attn_mask
    logits = logits.masked_fill(hidden, torch.finfo(torch.float64).min)
    weights = F.log_softmax(logits, -1).exp().masked_fill(hidden, 0.0)
    return (weights @ v).to(query.dtype)
