"""Attention to chosen blocks of keys in Triton: a program per query and group, dk and dv by atomic additions."""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable


@triton.jit
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    indices_ptr,
    counts_ptr,
    out_ptr,
    lse_ptr,
    scale,
    seqlen,
    heads,
    ratio,
    dim,
    dim_v,
    slots,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    groups = heads // ratio
    token, group = tl.program_id(0), tl.program_id(1)
    batch, own = token // seqlen, token % seqlen
    h, d, e = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    head_at = (token.to(tl.int64) * heads + group * ratio + h)[:, None]
    is_head = h[:, None] < ratio
    q = tl.load(q_ptr + head_at * dim + d[None, :], mask=is_head & (d[None, :] < dim), other=0.0)
    slot_at = token.to(tl.int64) * groups + group
    count = tl.load(counts_ptr + slot_at)
    peak = tl.full([BLOCK_H], -1e30, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], tl.float32)
    for slot in range(0, count):
        keys = tl.load(indices_ptr + slot_at * slots + slot) * BLOCK_S + tl.arange(0, BLOCK_S)
        key_at = ((batch * seqlen + keys).to(tl.int64) * groups + group)[:, None]
        seen = keys <= own
        k = tl.load(k_ptr + key_at * dim + d[None, :], mask=seen[:, None] & (d[None, :] < dim), other=0.0)
        v = tl.load(v_ptr + key_at * dim_v + e[None, :], mask=seen[:, None] & (e[None, :] < dim_v), other=0.0)
        scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * scale, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.where(seen[None, :], tl.exp(scores - higher[:, None]), 0.0)
        factor = tl.exp(peak - higher)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    total = tl.where(total == 0.0, 1.0, total)
    lse = peak + tl.log(total)
    tl.store(lse_ptr + token.to(tl.int64) * heads + group * ratio + h, lse, mask=h < ratio)
    is_out = is_head & (e[None, :] < dim_v)
    tl.store(out_ptr + head_at * dim_v + e[None, :], (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit
def _backward(
    q_ptr,
    k_ptr,
    v_ptr,
    indices_ptr,
    counts_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    scale,
    seqlen,
    heads,
    ratio,
    dim,
    dim_v,
    slots,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    groups = heads // ratio
    token, group = tl.program_id(0), tl.program_id(1)
    batch, own = token // seqlen, token % seqlen
    h, d, e = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    head_at = (token.to(tl.int64) * heads + group * ratio + h)[:, None]
    is_head = h[:, None] < ratio
    is_q = is_head & (d[None, :] < dim)
    q = tl.load(q_ptr + head_at * dim + d[None, :], mask=is_q, other=0.0)
    dout = tl.load(dout_ptr + head_at * dim_v + e[None, :], mask=is_head & (e[None, :] < dim_v), other=0.0)
    stat_at = token.to(tl.int64) * heads + group * ratio + h
    lse = tl.load(lse_ptr + stat_at, mask=h < ratio, other=0.0)
    delta = tl.load(delta_ptr + stat_at, mask=h < ratio, other=0.0)
    slot_at = token.to(tl.int64) * groups + group
    count = tl.load(counts_ptr + slot_at)
    dq = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for slot in range(0, count):
        keys = tl.load(indices_ptr + slot_at * slots + slot) * BLOCK_S + tl.arange(0, BLOCK_S)
        key_at = ((batch * seqlen + keys).to(tl.int64) * groups + group)[:, None]
        seen = keys <= own
        is_k, is_v = seen[:, None] & (d[None, :] < dim), seen[:, None] & (e[None, :] < dim_v)
        k = tl.load(k_ptr + key_at * dim + d[None, :], mask=is_k, other=0.0)
        v = tl.load(v_ptr + key_at * dim_v + e[None, :], mask=is_v, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        weights = tl.where(seen[None, :] & is_head, tl.exp(scores - lse[:, None]), 0.0)
        change = weights * (tl.dot(dout, tl.trans(v)) - delta[:, None]) * scale
        dq += tl.dot(change.to(k.dtype), k)
        tl.atomic_add(dk_ptr + key_at * dim + d[None, :], tl.dot(tl.trans(change.to(q.dtype)), q), mask=is_k)
        tl.atomic_add(dv_ptr + key_at * dim_v + e[None, :], tl.dot(tl.trans(weights.to(dout.dtype)), dout), mask=is_v)
    tl.store(dq_ptr + head_at * dim + d[None, :], dq.to(dq_ptr.dtype.element_ty), mask=is_q)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, indices, counts, block_size, scale):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, seqlen, heads, dim = q.shape
        groups, dim_v = v.shape[2:]
        out = q.new_empty(batch, seqlen, heads, dim_v)
        lse = torch.empty(batch, seqlen, heads, dtype=torch.float32, device=q.device)
        ratio = heads // groups
        sizes = (seqlen, heads, ratio, dim, dim_v, indices.shape[-1])
        blocks = (*(max(16, triton.next_power_of_2(each)) for each in (dim, dim_v, ratio)), block_size)
        grid = (batch * seqlen, groups)
        _forward[grid](q, k, v, indices, counts, out, lse, scale, *sizes, *blocks)
        ctx.save_for_backward(q, k, v, indices, counts, out, lse)
        ctx.asked = (scale, sizes, blocks, grid)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, indices, counts, out, lse = ctx.saved_tensors
        scale, sizes, blocks, grid = ctx.asked
        dout = dout.contiguous()
        delta = (dout.float() * out.float()).sum(-1)
        dq, dk, dv = torch.empty_like(q), *(torch.zeros_like(each, dtype=torch.float32) for each in (k, v))
        _backward[grid](q, k, v, indices, counts, dout, lse, delta, dq, dk, dv, scale, *sizes, *blocks)
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def selected_attention(q, k, v, g_slc, block_indices, block_counts, block_size=16, scale=None):
    """Gated attention of each query [B, S, H, D] to `block_counts` of its blocks of keys, up to its own key."""
    if block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two from 16 on, got {block_size}")
    if max(q.shape[-1], v.shape[-1]) > 128:
        raise ValueError(f"head sizes are served up to 128, got {q.shape[-1]} and {v.shape[-1]}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    indices, counts = block_indices.contiguous(), block_counts.contiguous()
    return _Selected.apply(q, k, v, indices, counts, block_size, scale) * g_slc[..., None]
