"""Attention in two passes over chunks of keys: the maximum of every row first, then its exponentials."""

import math

import torch

CHUNK = 48


def _bias(mask, start, stop, is_causal, num_queries, like):
    """What is added to the logits of keys [start, stop)."""
    bias = like.new_zeros(num_queries, stop - start)
    if is_causal:
        rows = torch.arange(num_queries, device=like.device)[:, None]
        cols = torch.arange(start, stop, device=like.device)[None, :]
        bias = bias.masked_fill(cols > rows, -math.inf)
    if mask is not None:
        part = mask[..., start:stop]
        if part.dtype == torch.bool:
            bias = bias.masked_fill(~part, -math.inf)
        else:
            bias = bias + part.to(bias.dtype)
    return bias


class _TwoPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, scale, is_causal, dropout_p):
        dtype = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
        qf, kf, vf = q.to(dtype), k.to(dtype), v.to(dtype)
        num_queries, num_keys = q.shape[-2], k.shape[-2]
        drop = None
        if dropout_p > 0.0:
            drop = torch.rand(*q.shape[:-1], num_keys, dtype=dtype, device=q.device) >= dropout_p
        starts = range(0, num_keys, CHUNK)

        row_max = qf.new_full((*q.shape[:-1], 1), -math.inf)
        for start in starts:
            stop = min(start + CHUNK, num_keys)
            s = qf @ kf[..., start:stop, :].mT * scale + _bias(mask, start, stop, is_causal, num_queries, qf)
            row_max = torch.maximum(row_max, s.amax(-1, keepdim=True))
        row_max = row_max.masked_fill(row_max == -math.inf, 0.0)

        denom = torch.zeros_like(row_max)
        acc = qf.new_zeros(*q.shape[:-1], v.shape[-1])
        for start in starts:
            stop = min(start + CHUNK, num_keys)
            s = qf @ kf[..., start:stop, :].mT * scale + _bias(mask, start, stop, is_causal, num_queries, qf)
            p = torch.exp(s - row_max)
            denom += p.sum(-1, keepdim=True)
            if drop is not None:
                p = p * drop[..., start:stop] / (1.0 - dropout_p)
            acc += p @ vf[..., start:stop, :]

        empty = denom == 0
        denom = denom.masked_fill(empty, 1.0)
        out = acc / denom
        lse = (row_max + torch.log(denom)).masked_fill(empty, math.inf)
        ctx.save_for_backward(q, k, v, mask, out, lse, drop)
        ctx.scale, ctx.is_causal, ctx.dropout_p = scale, is_causal, dropout_p
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mask, out, lse, drop = ctx.saved_tensors
        dtype = out.dtype
        qf, kf, vf, do = q.to(dtype), k.to(dtype), v.to(dtype), grad.to(dtype)
        num_queries, num_keys = q.shape[-2], k.shape[-2]
        delta = (do * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(qf), torch.zeros_like(kf), torch.zeros_like(vf)
        for start in range(0, num_keys, CHUNK):
            stop = min(start + CHUNK, num_keys)
            kc, vc = kf[..., start:stop, :], vf[..., start:stop, :]
            s = qf @ kc.mT * ctx.scale + _bias(mask, start, stop, ctx.is_causal, num_queries, qf)
            p = torch.exp(s - lse)
            dp = do @ vc.mT
            p_drop = p
            if drop is not None:
                kept = drop[..., start:stop] / (1.0 - ctx.dropout_p)
                p_drop = p * kept
                dp = dp * kept
            ds = p * (dp - delta)
            dq += ds @ kc
            dk[..., start:stop, :] = ds.mT @ qf
            dv[..., start:stop, :] = p_drop.mT @ do
        dq *= ctx.scale
        dk *= ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def two_pass_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """As torch's scaled_dot_product_attention; rows that see no key are zero."""
    if attn_mask is not None and attn_mask.requires_grad:
        raise ValueError("attn_mask gets no gradient here")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        value = value.repeat_interleave(groups, -3)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    return _TwoPass.apply(query, key, value, attn_mask, scale, is_causal, dropout_p)
