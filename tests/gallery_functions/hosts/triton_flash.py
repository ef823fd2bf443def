"""FlashAttention-2 as Triton kernels: an autotuned forward pass, and one backward kernel that adds up dq atomically."""

import os

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

UNLIMITED = 1 << 28
SIZES = ((32, 32, 4), (64, 32, 4), (64, 64, 4), (128, 64, 8))
CONFIGS = [triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=2) for m, n, warps in SIZES]
KEPT = CONFIGS[:1] if os.environ.get("TRITON_INTERPRET") else CONFIGS  # nothing can be timed in the interpreter


@triton.autotune(configs=KEPT, key=["BLOCK_D", "BLOCK_DV", "length_class"])
@triton.jit
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    scale,
    left,
    right,
    seqlen_q,
    seqlen_k,
    heads,
    ratio,
    dim,
    dim_v,
    length_class,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    start_m = tl.program_id(0) * BLOCK_M
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    group, groups = head // ratio, heads // ratio
    shift = seqlen_k - seqlen_q
    rows = start_m + tl.arange(0, BLOCK_M)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    row_at = ((batch * seqlen_q + rows).to(tl.int64) * heads + head)[:, None]
    q = tl.load(q_ptr + row_at * dim + d[None, :], mask=(rows[:, None] < seqlen_q) & (d[None, :] < dim), other=0.0)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    first = tl.maximum(0, start_m + shift - left) // BLOCK_N * BLOCK_N
    last = tl.minimum(seqlen_k, start_m + BLOCK_M + shift + right)
    for start_n in range(first, last, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        key_at = ((batch * seqlen_k + keys).to(tl.int64) * groups + group)[:, None]
        is_key = keys[:, None] < seqlen_k
        k = tl.load(k_ptr + key_at * dim + d[None, :], mask=is_key & (d[None, :] < dim), other=0.0)
        v = tl.load(v_ptr + key_at * dim_v + e[None, :], mask=is_key & (e[None, :] < dim_v), other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        distance = rows[:, None] + shift - keys[None, :]
        seen = (keys[None, :] < seqlen_k) & (distance <= left) & (distance >= -right)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        taken = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - taken[:, None])
        factor = tl.exp(peak - taken)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("inf"), peak + tl.log(total))
    tl.store(lse_ptr + (batch * heads + head).to(tl.int64) * seqlen_q + rows, lse, mask=rows < seqlen_q)
    is_out = (rows[:, None] < seqlen_q) & (e[None, :] < dim_v)
    tl.store(out_ptr + row_at * dim_v + e[None, :], (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit
def _backward(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    scale,
    left,
    right,
    seqlen_q,
    seqlen_k,
    heads,
    ratio,
    dim,
    dim_v,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    start_n = tl.program_id(0) * BLOCK_N
    groups = heads // ratio
    batch, group = tl.program_id(1) // groups, tl.program_id(1) % groups
    shift = seqlen_k - seqlen_q
    keys = start_n + tl.arange(0, BLOCK_N)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    is_k = (keys[:, None] < seqlen_k) & (d[None, :] < dim)
    is_v = (keys[:, None] < seqlen_k) & (e[None, :] < dim_v)
    key_at = ((batch * seqlen_k + keys).to(tl.int64) * groups + group)[:, None]
    k = tl.load(k_ptr + key_at * dim + d[None, :], mask=is_k, other=0.0)
    v = tl.load(v_ptr + key_at * dim_v + e[None, :], mask=is_v, other=0.0)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    first = tl.maximum(0, start_n - shift - right) // BLOCK_M * BLOCK_M
    last = tl.minimum(seqlen_q, start_n + BLOCK_N - shift + left)
    for each in range(0, ratio):
        head = group * ratio + each
        for start_m in range(first, last, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            row_at = ((batch * seqlen_q + rows).to(tl.int64) * heads + head)[:, None]
            is_row = rows[:, None] < seqlen_q
            q = tl.load(q_ptr + row_at * dim + d[None, :], mask=is_row & (d[None, :] < dim), other=0.0)
            dout = tl.load(dout_ptr + row_at * dim_v + e[None, :], mask=is_row & (e[None, :] < dim_v), other=0.0)
            stat_at = (batch * heads + head).to(tl.int64) * seqlen_q + rows
            lse = tl.load(lse_ptr + stat_at, mask=rows < seqlen_q, other=float("inf"))
            delta = tl.load(delta_ptr + stat_at, mask=rows < seqlen_q, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            distance = rows[:, None] + shift - keys[None, :]
            seen = is_row & (keys[None, :] < seqlen_k) & (distance <= left) & (distance >= -right)
            weights = tl.where(seen, tl.exp(scores - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(weights.to(dout.dtype)), dout)
            change = weights * (tl.dot(dout, tl.trans(v)) - delta[:, None]) * scale
            dk += tl.dot(tl.trans(change.to(q.dtype)), q)
            dq = tl.dot(change.to(k.dtype), k)
            tl.atomic_add(dq_ptr + row_at * dim + d[None, :], dq, mask=is_row & (d[None, :] < dim))
    tl.store(dk_ptr + key_at * dim + d[None, :], dk.to(dk_ptr.dtype.element_ty), mask=is_k)
    tl.store(dv_ptr + key_at * dim_v + e[None, :], dv.to(dv_ptr.dtype.element_ty), mask=is_v)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, left, right):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, seqlen_q, heads, dim = q.shape
        seqlen_k, groups, dim_v = v.shape[1:]
        out = q.new_empty(batch, seqlen_q, heads, dim_v)
        lse = torch.empty(batch, heads, seqlen_q, dtype=torch.float32, device=q.device)
        sizes = (seqlen_q, seqlen_k, heads, heads // groups, dim, dim_v)
        blocks = (max(16, triton.next_power_of_2(dim)), max(16, triton.next_power_of_2(dim_v)))
        if out.numel():
            grid = lambda meta: (triton.cdiv(seqlen_q, meta["BLOCK_M"]), batch * heads)  # noqa: E731
            _forward[grid](q, k, v, out, lse, scale, left, right, *sizes, int(seqlen_k > 128), *blocks)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.asked = (scale, left, right, sizes, blocks)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        scale, left, right, sizes, blocks = ctx.asked
        dout = dout.contiguous()
        delta = (dout.float() * out.float()).sum(-1).transpose(1, 2).contiguous()
        dq = torch.zeros_like(q, dtype=torch.float32)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        batch, seqlen_k, groups = k.shape[:3]
        tile = 32 if batch * groups < 8 else 64  # more programs where there are few heads
        grid = (triton.cdiv(seqlen_k, tile), batch * groups)
        tiles = {"BLOCK_M": 32, "BLOCK_N": tile, "num_warps": 4, "num_stages": 1}
        if dk.numel():
            _backward[grid](q, k, v, dout, lse, delta, dq, dk, dv, scale, left, right, *sizes, *blocks, **tiles)
        return dq.to(q.dtype), dk, dv, None, None, None


def triton_attention(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1)):
    """Attention of [B, S, H, D], the diagonal at the bottom right; heads of queries share those of keys in groups."""
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads are no multiple of {k.shape[2]} key heads")
    if max(q.shape[-1], v.shape[-1]) > 128:
        raise ValueError(f"head sizes are served up to 128, got {q.shape[-1]} and {v.shape[-1]}")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = (UNLIMITED if side < 0 else side for side in window_size)
    return _Attention.apply(q, k, v, scale, left, 0 if causal else right)
