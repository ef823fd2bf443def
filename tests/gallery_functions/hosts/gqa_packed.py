"""Grouped-query attention that packs the heads of a group into rows of one matrix, so that keys are read once."""

import math

import torch

ROWS = 64
HEADS_AT_ONCE = 2


def _pack(x, kv_heads):
    """[B, H, S, D] -> [B, Hk, G * S, D]: head after head."""
    b, h, s, d = x.shape
    return x.reshape(b, kv_heads, (h // kv_heads) * s, d)


def _causal(start, stop, seqlen_q, seqlen_k, device):
    """Packed rows against keys; a row's position is its place in its own head."""
    position = torch.arange(start, stop, device=device) % seqlen_q
    return torch.arange(seqlen_k, device=device)[None, :] <= position[:, None]


class _PackedGQA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, is_causal):
        work = torch.promote_types(q.dtype, torch.float32)
        kv_heads, seqlen_q, seqlen_k = k.shape[1], q.shape[2], k.shape[2]
        packed = _pack(q.to(work), kv_heads)
        kf, vf = k.to(work), v.to(work)
        out = packed.new_empty(*packed.shape[:3], v.shape[-1])
        lse = packed.new_empty(packed.shape[:3])
        for start in range(0, packed.shape[2], ROWS):
            stop = min(start + ROWS, packed.shape[2])
            s = packed[:, :, start:stop] @ kf.mT * scale
            if is_causal:
                s = s.masked_fill(~_causal(start, stop, seqlen_q, seqlen_k, q.device), -math.inf)
            m = s.amax(-1, keepdim=True)
            e = torch.exp(s - m)
            z = e.sum(-1, keepdim=True)
            out[:, :, start:stop] = e @ vf / z
            lse[:, :, start:stop] = (m + z.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.is_causal = scale, is_causal
        return out.reshape(*q.shape[:3], v.shape[-1]).to(q.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        work, scale = out.dtype, ctx.scale
        kv_heads, seqlen_q, seqlen_k = k.shape[1], q.shape[2], k.shape[2]
        packed = _pack(q.to(work), kv_heads)
        do = _pack(grad_out.to(work), kv_heads)
        delta = (do * out).sum(-1, keepdim=True)
        dq = torch.zeros_like(packed)
        dk = torch.zeros(k.shape, dtype=work, device=k.device)
        dv = torch.zeros(v.shape, dtype=work, device=v.device)
        for h0 in range(0, kv_heads, HEADS_AT_ONCE):
            heads = slice(h0, min(h0 + HEADS_AT_ONCE, kv_heads))
            kf, vf = k[:, heads].to(work), v[:, heads].to(work)
            for start in range(0, packed.shape[2], ROWS):
                stop = min(start + ROWS, packed.shape[2])
                qi, do_i = packed[:, heads, start:stop], do[:, heads, start:stop]
                s = qi @ kf.mT * scale
                p = torch.exp(s - lse[:, heads, start:stop, None])
                if ctx.is_causal:
                    p = p.masked_fill(~_causal(start, stop, seqlen_q, seqlen_k, q.device), 0.0)
                dv[:, heads] += p.mT @ do_i
                dp = do_i @ vf.mT
                ds = p * (dp - delta[:, heads, start:stop])
                dq[:, heads, start:stop] = ds @ kf * scale
                dk[:, heads] += ds.mT @ qi * scale
        dq = dq.reshape(q.shape).to(q.dtype) if ctx.needs_input_grad[0] else None
        dk = dk.to(k.dtype) if ctx.needs_input_grad[1] else None
        dv = dv.to(v.dtype) if ctx.needs_input_grad[2] else None
        return dq, dk, dv, None, None


def packed_gqa_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=True
):
    """As torch's scaled_dot_product_attention with grouped heads, without a mask and without dropout."""
    if attn_mask is not None or dropout_p:
        raise ValueError("attn_mask and dropout_p are not supported; use torch's own function")
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} heads do not share {key.shape[1]} key heads")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    return _PackedGQA.apply(query, key, value, scale, is_causal)
