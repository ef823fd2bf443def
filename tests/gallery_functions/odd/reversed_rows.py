"""Attention one query at a time, keys from the last to the first."""

import torch


def attention(q, k, v, is_causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for i in range(q.shape[-2]):
        seen = min(i + 1, k.shape[-2]) if is_causal else k.shape[-2]
        keys, values = k[..., :seen, :].flip(-2), v[..., :seen, :].flip(-2)
        query = q[..., i : i + 1, :].clone().mul_(scale)
        rows.append(torch.softmax(query @ keys.mT, dim=-1) @ values)
    return torch.cat(rows, dim=-2)
