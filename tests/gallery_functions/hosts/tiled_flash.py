"""FlashAttention-2 in plain PyTorch: tiles of queries and keys, online softmax, P recomputed in the backward pass."""

import math

import torch
from torch.autograd.function import once_differentiable

BLOCK_M = 32
BLOCK_N = 32


def _accum_dtype(x):
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def _split_heads(x, kv_heads):
    """[B, S, H, D] -> [B, Hk, G, S, D] in the dtype of accumulation."""
    b, s, h, d = x.shape
    return x.to(_accum_dtype(x)).transpose(1, 2).reshape(b, kv_heads, h // kv_heads, s, d)


def _merge_heads(x, like):
    """[B, Hk, G, S, D] -> [B, S, H, D] in the dtype of the inputs."""
    b, hk, g, s, d = x.shape
    return x.reshape(b, hk * g, s, d).transpose(1, 2).contiguous().to(like.dtype)


def _keep(m0, m1, n0, n1, shift, left, right, device):
    rows = torch.arange(m0, m1, device=device)[:, None] + shift
    cols = torch.arange(n0, n1, device=device)[None, :]
    keep = torch.ones(m1 - m0, n1 - n0, dtype=torch.bool, device=device)
    if right >= 0:
        keep &= cols <= rows + right
    if left >= 0:
        keep &= cols >= rows - left
    return keep


def _key_range(m0, m1, seqlen_k, shift, left, right):
    """The keys that a tile of queries can see, from the first tile on."""
    lo = 0 if left < 0 else max(0, (m0 + shift - left) // BLOCK_N * BLOCK_N)
    hi = seqlen_k if right < 0 else min(seqlen_k, m1 + shift + right)
    return lo, hi


def _logits(qi, kj, scale, softcap):
    s = torch.matmul(qi, kj.transpose(-1, -2)) * scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    return s


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, left, right, softcap):
        seqlen_q, seqlen_k, kv_heads = q.shape[1], k.shape[1], k.shape[2]
        shift = seqlen_k - seqlen_q
        qh, kh, vh = _split_heads(q, kv_heads), _split_heads(k, kv_heads), _split_heads(v, kv_heads)
        out = qh.new_empty(*qh.shape[:-1], v.shape[-1])
        lse = qh.new_empty(qh.shape[:-1])
        for m0 in range(0, seqlen_q, BLOCK_M):
            m1 = min(m0 + BLOCK_M, seqlen_q)
            qi = qh[..., m0:m1, :]
            m_i = qi.new_full(qi.shape[:-1], -math.inf)
            l_i = qi.new_zeros(qi.shape[:-1])
            acc = qi.new_zeros(*qi.shape[:-1], v.shape[-1])
            lo, hi = _key_range(m0, m1, seqlen_k, shift, left, right)
            for n0 in range(lo, hi, BLOCK_N):
                n1 = min(n0 + BLOCK_N, seqlen_k)
                s = _logits(qi, kh[..., n0:n1, :], scale, softcap)
                keep = _keep(m0, m1, n0, n1, shift, left, right, q.device)
                s = s.masked_fill(~keep, -math.inf)
                m_new = torch.maximum(m_i, s.amax(-1))
                m_sub = m_new.masked_fill(m_new == -math.inf, 0.0)
                p = torch.exp(s - m_sub[..., None])
                alpha = torch.exp(m_i - m_sub)
                l_i = l_i * alpha + p.sum(-1)
                acc = acc * alpha[..., None] + torch.matmul(p, vh[..., n0:n1, :])
                m_i = m_new
            empty = l_i == 0
            l_safe = l_i.masked_fill(empty, 1.0)
            out[..., m0:m1, :] = acc / l_safe[..., None]
            lse[..., m0:m1] = (m_i + torch.log(l_safe)).masked_fill(empty, math.inf)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.config = (scale, left, right, softcap)
        lse_out = lse.flatten(1, 2).float()
        ctx.mark_non_differentiable(lse_out)
        return _merge_heads(out, q), lse_out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, _dlse):
        q, k, v, out, lse = ctx.saved_tensors
        scale, left, right, softcap = ctx.config
        seqlen_q, seqlen_k, kv_heads = q.shape[1], k.shape[1], k.shape[2]
        shift = seqlen_k - seqlen_q
        qh, kh, vh = _split_heads(q, kv_heads), _split_heads(k, kv_heads), _split_heads(v, kv_heads)
        do = _split_heads(dout, kv_heads)
        delta = (do * out).sum(-1)
        dq, dk, dv = torch.zeros_like(qh), torch.zeros_like(kh), torch.zeros_like(vh)
        for n0 in range(0, seqlen_k, BLOCK_N):
            n1 = min(n0 + BLOCK_N, seqlen_k)
            kj, vj = kh[..., n0:n1, :], vh[..., n0:n1, :]
            dk_j, dv_j = torch.zeros_like(kj), torch.zeros_like(vj)
            for m0 in range(0, seqlen_q, BLOCK_M):
                m1 = min(m0 + BLOCK_M, seqlen_q)
                keep = _keep(m0, m1, n0, n1, shift, left, right, q.device)
                if not keep.any():
                    continue
                qi, do_i = qh[..., m0:m1, :], do[..., m0:m1, :]
                s = _logits(qi, kj, scale, softcap)
                p = torch.exp(s - lse[..., m0:m1, None])
                p = p.masked_fill(~keep, 0.0)
                dv_j += torch.matmul(p.transpose(-1, -2), do_i).sum(2, keepdim=True)
                dp = torch.matmul(do_i, vj.transpose(-1, -2))
                ds = p * (dp - delta[..., m0:m1, None])
                if softcap > 0:
                    ds = ds * (1.0 - (s / softcap) ** 2)
                dq[..., m0:m1, :] += torch.matmul(ds, kj) * scale
                dk_j += torch.matmul(ds.transpose(-1, -2), qi).sum(2, keepdim=True) * scale
            dk[..., n0:n1, :] = dk_j
            dv[..., n0:n1, :] = dv_j
        return _merge_heads(dq, q), _merge_heads(dk, k), _merge_heads(dv, v), None, None, None, None


def flash_attention(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    return_attn_probs=False,
):
    """Attention of [B, S, H, D]; with `return_attn_probs` the logsumexp [B, H, S] beside it."""
    if dropout_p:
        raise ValueError(f"dropout is not supported, got dropout_p={dropout_p}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads are no multiple of {k.shape[2]} key heads")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = window_size
    if causal:
        right = 0
    out, lse = _FlashAttention.apply(q, k, v, scale, left, right, softcap)
    return (out, lse, None) if return_attn_probs else out
