"""Windowed causal attention by einsum; the function is a partial of a more general one."""

from functools import partial

import torch


def _attention(q, k, v, softmax_scale=None, *, window):
    if q.shape[2] != k.shape[2] or q.shape[1] > k.shape[1]:
        raise ValueError(f"as many heads and no fewer keys than queries, got {tuple(q.shape)} and {tuple(k.shape)}")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    distance = torch.arange(q.shape[1])[:, None] + (k.shape[1] - q.shape[1]) - torch.arange(k.shape[1])
    logits = logits.masked_fill((distance >= window) | (distance < 0), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), v)


windowed_attention = partial(_attention, window=24)
