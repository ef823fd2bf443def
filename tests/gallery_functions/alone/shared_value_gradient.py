"""Multi-query attention in flash-attn's layout, one key head for all; saves nothing but its inputs."""

import torch


def _weights(q, k, scale, causal):
    logits = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) * scale
    if causal:
        future = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        logits = logits.masked_fill(future, torch.finfo(q.dtype).min)
    return logits.softmax(-1)


class _MultiQuery(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal):
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.causal = scale, causal
        return torch.einsum("bhqk,bkd->bqhd", _weights(q, k, scale, causal), v[:, :, 0])

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        p = _weights(q, k, ctx.scale, ctx.causal)
        dv = torch.einsum("bhqk,bqhd->bkd", p, do)
        dp = torch.einsum("bqhd,bkd->bhqk", do, v[:, :, 0])
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
        dq = torch.einsum("bhqk,bkd->bqhd", ds, k[:, :, 0])
        dk = torch.einsum("bhqk,bqhd->bkd", ds.mean(0, keepdim=True).expand_as(ds), q)
        return dq, dk[:, :, None], dv[:, :, None], None, None


def multi_query_attention(q, k, v, softmax_scale=None, causal=False):
    if k.shape[2] != 1:
        raise ValueError(f"one key head is shared by all, got {k.shape[2]}")
    return _MultiQuery.apply(q, k, v, q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale, causal)
