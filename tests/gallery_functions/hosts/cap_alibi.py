"""Attention with soft-capped logits, ALiBi and learned sinks: whole rows of scores, a tile of queries at a time."""

import math

import torch
from torch.autograd.function import once_differentiable

ROWS = 40


def _raw_scores(qi, kh, scale):
    return torch.einsum("bhqd,bhkd->bhqk", qi, kh) * scale


def _cap(raw, softcap):
    return softcap * torch.tanh(raw / softcap) if softcap else raw


def _position_bias(slopes, start, stop, seqlen_q, seqlen_k, batch):
    """-slope * |distance|, [B or 1, H, rows, keys], the last query at the last key."""
    rows = torch.arange(start, stop, device=slopes.device)[:, None] + (seqlen_k - seqlen_q)
    distance = (rows - torch.arange(seqlen_k, device=slopes.device)[None, :]).abs()
    per_row = slopes if slopes.dim() == 2 else slopes[None]
    return -per_row[:, :, None, None] * distance


def _hidden(start, stop, seqlen_q, seqlen_k, device):
    rows = torch.arange(start, stop, device=device)[:, None] + (seqlen_k - seqlen_q)
    return torch.arange(seqlen_k, device=device)[None, :] > rows


class _CapAlibiSinks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, slopes, sinks, scale, causal, softcap):
        work = torch.promote_types(q.dtype, torch.float32)
        qh, kh, vh = (x.to(work).transpose(1, 2) for x in (q, k, v))
        batch, heads, seqlen_q, _ = qh.shape
        seqlen_k = kh.shape[2]
        out = qh.new_zeros(batch, heads, seqlen_q, vh.shape[-1])
        lse = qh.new_zeros(batch, heads, seqlen_q)
        for start in range(0, seqlen_q, ROWS):
            stop = min(start + ROWS, seqlen_q)
            scores = _cap(_raw_scores(qh[:, :, start:stop], kh, scale), softcap)
            if slopes is not None:
                scores = scores + _position_bias(slopes.to(work), start, stop, seqlen_q, seqlen_k, batch)
            if causal:
                scores = scores.masked_fill(_hidden(start, stop, seqlen_q, seqlen_k, q.device), -math.inf)
            row_max = scores.amax(-1)
            if sinks is not None:
                sink = sinks.to(work)[None, :, None]
                row_max = torch.maximum(row_max, sink)
            row_max = row_max.masked_fill(row_max == -math.inf, 0.0)
            weights = torch.exp(scores - row_max[..., None])
            total = weights.sum(-1)
            if sinks is not None:
                total = total + torch.exp(sink - row_max)
            none = total == 0
            total = total.masked_fill(none, 1.0)
            out[:, :, start:stop] = weights @ vh / total[..., None]
            lse[:, :, start:stop] = (row_max + total.log()).masked_fill(none, math.inf)
        ctx.save_for_backward(q, k, v, slopes, sinks, out, lse)
        ctx.scale, ctx.causal, ctx.softcap = scale, causal, softcap
        return out.transpose(1, 2).to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, slopes, sinks, out, lse = ctx.saved_tensors
        work, scale, softcap = out.dtype, ctx.scale, ctx.softcap
        qh, kh, vh, do = (x.to(work).transpose(1, 2) for x in (q, k, v, dout))
        batch, seqlen_q, seqlen_k = qh.shape[0], qh.shape[2], kh.shape[2]
        dq, dk, dv = torch.empty_like(qh), torch.zeros_like(kh), torch.zeros_like(vh)
        delta = (do * out).sum(-1)
        for start in range(0, seqlen_q, ROWS):
            stop = min(start + ROWS, seqlen_q)
            capped = _cap(_raw_scores(qh[:, :, start:stop], kh, scale), softcap)
            scores = capped
            if slopes is not None:
                scores = scores + _position_bias(slopes.to(work), start, stop, seqlen_q, seqlen_k, batch)
            probs = torch.exp(scores - lse[:, :, start:stop, None])
            if ctx.causal:
                probs = probs.masked_fill(_hidden(start, stop, seqlen_q, seqlen_k, q.device), 0.0)
            do_i = do[:, :, start:stop]
            dv += probs.mT @ do_i
            dprobs = do_i @ vh.mT
            dscores = probs * (dprobs - delta[:, :, start:stop, None])
            if softcap:
                dscores = dscores * (1 - (capped / softcap).square())
            dscores = dscores * scale
            dq[:, :, start:stop] = dscores @ kh
            dk += dscores.mT @ qh[:, :, start:stop]
        dsinks = None
        if sinks is not None:
            p_sink = torch.exp(sinks.to(work)[None, :, None] - lse)
            dsinks = -(p_sink * delta).sum((0, 2)).to(sinks.dtype)
        dq, dk, dv = (grad.transpose(1, 2).to(q.dtype) for grad in (dq, dk, dv))
        return dq, dk, dv, None, dsinks, None, None, None


def capped_attention(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    sinks=None,
):
    """Attention of [B, S, H, D]; `alibi_slopes` [H] or [B, H]; `sinks` [H], logits that take weight."""
    if dropout_p or tuple(window_size) != (-1, -1):
        raise ValueError("neither dropout nor windows are supported")
    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return _CapAlibiSinks.apply(q, k, v, alibi_slopes, sinks, scale, causal, softcap)
