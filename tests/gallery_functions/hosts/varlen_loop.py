"""Packed sequences of different lengths: a loop over sequences and tiles of queries, with one workspace for scores."""

import math

import torch

TILE = 24


def _per_head(x, groups):
    """[S, Hk, D] -> [H, S, D] in float32 at least, keys repeated for the query heads that share them."""
    x = x.to(torch.promote_types(x.dtype, torch.float32)).transpose(0, 1)
    return x.repeat_interleave(groups, 0) if groups > 1 else x


def _write_scores(workspace, qi, kh, row0, shift, scale, left, right):
    """Scores of a tile of queries in the workspace, hidden ones at -inf."""
    num_rows, num_keys = qi.shape[1], kh.shape[1]
    scores = workspace[:, :num_rows, :num_keys]
    torch.matmul(qi, kh.transpose(1, 2), out=scores)
    scores.mul_(scale)
    rows = torch.arange(row0, row0 + num_rows, device=qi.device)[:, None] + shift
    cols = torch.arange(num_keys, device=qi.device)[None, :]
    if right >= 0:
        scores.masked_fill_(cols > rows + right, -math.inf)
    if left >= 0:
        scores.masked_fill_(cols < rows - left, -math.inf)
    return scores


class _Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_q, cu_k, max_k, scale, left, right):
        num_heads, groups = q.shape[1], q.shape[1] // k.shape[1]
        work = torch.promote_types(q.dtype, torch.float32)
        workspace = torch.empty(num_heads, TILE, max_k, dtype=work, device=q.device)
        out = torch.zeros(q.shape[0], num_heads, v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.full((num_heads, q.shape[0]), math.inf, dtype=work, device=q.device)
        bounds_q, bounds_k = cu_q.tolist(), cu_k.tolist()
        for i in range(len(bounds_q) - 1):
            q_start, q_end = bounds_q[i], bounds_q[i + 1]
            k_start, k_end = bounds_k[i], bounds_k[i + 1]
            if q_start == q_end or k_start == k_end:
                continue
            kh, vh = _per_head(k[k_start:k_end], groups), _per_head(v[k_start:k_end], groups)
            qh = _per_head(q[q_start:q_end], 1)
            shift = (k_end - k_start) - (q_end - q_start)
            for row in range(0, q_end - q_start, TILE):
                qi = qh[:, row : row + TILE]
                scores = _write_scores(workspace, qi, kh, row, shift, scale, left, right)
                peak = scores.amax(-1, keepdim=True)
                peak = peak.masked_fill(peak == -math.inf, 0.0)
                probs = torch.exp(scores - peak)
                total = probs.sum(-1, keepdim=True)
                empty = total == 0
                total = total.masked_fill(empty, 1.0)
                here = slice(q_start + row, q_start + row + qi.shape[1])
                out[here] = (probs @ vh / total).transpose(0, 1).to(q.dtype)
                lse[:, here] = (peak + total.log()).masked_fill(empty, math.inf).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.bounds, ctx.max_k, ctx.rest = (bounds_q, bounds_k), max_k, (scale, left, right)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        scale, left, right = ctx.rest
        bounds_q, bounds_k = ctx.bounds
        num_heads, kv_heads = q.shape[1], k.shape[1]
        groups = num_heads // kv_heads
        work = lse.dtype
        workspace = torch.empty(num_heads, TILE, ctx.max_k, dtype=work, device=q.device)
        dq = torch.zeros(q.shape, dtype=work, device=q.device)
        dk = torch.zeros(k.shape, dtype=work, device=q.device)
        dv = torch.zeros(v.shape, dtype=work, device=q.device)
        delta = (dout.to(work) * out.to(work)).sum(-1)
        for i in range(len(bounds_q) - 1):
            q_start, q_end = bounds_q[i], bounds_q[i + 1]
            k_start, k_end = bounds_k[i], bounds_k[i + 1]
            if q_start == q_end or k_start == k_end:
                continue
            kh, vh = _per_head(k[k_start:k_end], groups), _per_head(v[k_start:k_end], groups)
            qh, doh = _per_head(q[q_start:q_end], 1), _per_head(dout[q_start:q_end], 1)
            shift = (k_end - k_start) - (q_end - q_start)
            dkh, dvh = torch.zeros_like(kh), torch.zeros_like(vh)
            for row in range(0, q_end - q_start, TILE):
                qi, do = qh[:, row : row + TILE], doh[:, row : row + TILE]
                here = slice(q_start + row, q_start + row + qi.shape[1])
                scores = _write_scores(workspace, qi, kh, row, shift, scale, left, right)
                probs = torch.exp(scores - lse[:, here, None])
                dvh += probs.transpose(1, 2) @ do
                dp = do @ vh.transpose(1, 2)
                ds = probs * (dp - delta[here].t()[:, :, None]) * scale
                dq[here] = (ds @ kh).transpose(0, 1)
                dkh += ds.transpose(1, 2) @ qi
            dk[k_start:k_end] = dkh.unflatten(0, (kv_heads, groups)).sum(1).transpose(0, 1)
            dv[k_start:k_end] = dvh.unflatten(0, (kv_heads, groups)).sum(1).transpose(0, 1)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None, None, None


def varlen_attention(
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
    """Attention within packed sequences, [T, H, D]; causal masks are aligned at the last query and key."""
    if dropout_p != 0.0:
        raise NotImplementedError("dropout in packed attention")
    scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    left, right = window_size[0], 0 if causal else window_size[1]
    return _Varlen.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_k), scale, left, right)
