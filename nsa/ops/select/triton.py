"""The selected branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

The output and the gradient of q: one program for each query and group, whose heads are the rows of its products, walks
the blocks that query chose. The gradients of k and v: one program for each block, whose rows are the heads of all
queries that chose it; sorting the (query, slot) pairs by block finds them. Nothing is added atomically, so the same
inputs give the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.geometry import Geometry
from nsa.ops.kernel_tiles import (
    add_grad_kv,
    add_grad_q,
    attend_tile,
    current,
    finish_rows,
    load_norm,
    load_rows,
    make_delta,
    rows_that_fit,
    scale,
    side,
    store_rows,
)
from nsa.ops.tiles import refuse_second_derivatives
from nsa.types import Key, Output, Query, Slots, Value

_MOST_HEADS = 64  # rows of one program's products; a group with more heads takes several
_MOST_KEYS = 64  # of one product
_MOST_ROWS = 128  # (query, head) pairs that meet a block at once in the backward pass
_WARPS_BY_QUERY, _WARPS_BY_BLOCK = 2, 4  # fastest on an H200, as are the sizes above


def selected_attention(q: Query, k: Key, v: Value, slots: Slots, geometry: Geometry) -> Output:
    """Attention of each query over the tokens of its chosen blocks, up to itself (Eq. 11 and 12).

    The T queries are the last T of the S key tokens. A query with no readable key gives exactly zero.
    """
    # A block longer than the sequence is no longer for it; of few lengths, since each is compiled for.
    block_length = min(geometry.l_sel, side(k.shape[1]))
    out: Tensor = _SelectedAttention.apply(q, k, v, slots, block_length)
    return out


class _SelectedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, block_length: int) -> Tensor:
        q, k, v, slots = (x.contiguous() for x in (q, k, v, slots))
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        norm = q.new_empty(*q.shape[:3], 2, dtype=torch.float32)
        grid, sizes = _by_query(q, k, v, slots, block_length)
        with current(q.device):
            _attend[grid](q, k, v, slots, out, norm, q.shape[1], k.shape[1], **sizes, num_warps=_WARPS_BY_QUERY)
        ctx.save_for_backward(q, k, v, slots, out, norm)
        ctx.block_length = block_length
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        q, k, v, slots, out, norm = ctx.saved_tensors
        num_queries, num_tokens, num_groups = q.shape[1], k.shape[1], k.shape[2]
        num_streams, num_blocks = k.shape[0] * num_groups, -(-num_tokens // ctx.block_length)
        grad = grad.to(q.dtype).contiguous()
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = q.new_empty(q.shape[:3], dtype=torch.float32)
        grid, sizes = _by_query(q, k, v, slots, ctx.block_length)
        query, first = _queries_by_block(slots, num_blocks)
        with current(q.device):
            _attend_backward_q[grid](
                q, k, v, slots, out, norm, grad, grad_q, delta, num_queries, num_tokens,
                **sizes, num_warps=_WARPS_BY_QUERY,
            )  # fmt: skip
            for name in ("NUM_SLOTS", "SLOTS", "ROWS"):
                del sizes[name]
            rows = rows_that_fit(_MOST_ROWS, q.device, sizes["WIDTH_K"], sizes["WIDTH_V"])
            _attend_backward_kv[num_streams * num_blocks, -(-ctx.block_length // sizes["KEYS"])](
                q, k, v, norm, grad, delta, query, first, grad_k, grad_v, num_queries, num_tokens, num_streams,
                num_blocks, **sizes, ROWS=rows, num_warps=_WARPS_BY_BLOCK,
            )  # fmt: skip
        return grad_q, grad_k, grad_v, None, None


def _by_query(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, block_length: int
) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of the kernels that walk a query's blocks, and the sizes they are compiled for."""
    num_groups, heads = k.shape[2], q.shape[2] // k.shape[2]
    rows, width_k, width_v = side(min(heads, _MOST_HEADS)), side(q.shape[-1]), side(v.shape[-1])
    grid = q.shape[0] * q.shape[1], num_groups, -(-heads // rows)
    return grid, {
        "HEADS": heads,
        "GROUPS": num_groups,
        "SIZE_K": q.shape[-1],
        "SIZE_V": v.shape[-1],
        "WIDTH_K": width_k,
        "WIDTH_V": width_v,
        "LENGTH": block_length,
        "KEYS": min(side(block_length), rows_that_fit(_MOST_KEYS, q.device, width_k, width_v)),
        "NUM_SLOTS": slots.shape[-1],
        "SLOTS": side(slots.shape[-1]),
        "ROWS": rows,
    }


def _queries_by_block(slots: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """The queries b·T + t of each block's readers, one stream's blocks after another's; where each block's begin.

    [pairs] and [B·G·num_blocks + 1]; readers of no block of the sequence come last.
    """
    rows, _, groups, num_slots = slots.shape
    stream = torch.arange(rows * groups, device=slots.device).view(rows, 1, groups, 1)
    nowhere = rows * groups * num_blocks
    exists = (slots >= 0) & (slots < num_blocks)
    block = torch.where(exists, slots + stream * num_blocks, nowhere).flatten()
    block, pair = block.to(torch.int32).sort(stable=True)
    first = torch.searchsorted(block, torch.arange(nowhere + 1, dtype=torch.int32, device=slots.device))
    return pair // (groups * num_slots), first


_VARYING = ("num_queries", "num_tokens", "num_streams", "num_blocks")  # vary, and are no reason to compile again


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, slots, out, norm, num_queries, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of one query and group."""
    query, group, row, is_row = _place(HEADS, GROUPS, ROWS)
    q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
    slots += (query * GROUPS + group) * NUM_SLOTS
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for step in range(_num_steps(slots, NUM_SLOTS, SLOTS, LENGTH, KEYS)):
        token, is_visible = _keys_of_step(slots, step, query, num_queries, num_tokens, LENGTH, KEYS)
        k_tile = load_rows(k, token * GROUPS + group, is_visible, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token * GROUPS + group, is_visible, SIZE_V, WIDTH_V)
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible[None, :], peak, total, mixed, SIZE_K)
    finish_rows(out, norm, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, slots, out, norm, grad, grad_q, delta, num_queries, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and delta, of one query and group."""
    query, group, row, is_row = _place(HEADS, GROUPS, ROWS)
    q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
    row_delta = make_delta(delta, row, is_row, grad_tile, load_rows(out, row, is_row, SIZE_V, WIDTH_V))
    peak, log_total = load_norm(norm, row, is_row)
    slots += (query * GROUPS + group) * NUM_SLOTS
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    for step in range(_num_steps(slots, NUM_SLOTS, SLOTS, LENGTH, KEYS)):
        token, is_visible = _keys_of_step(slots, step, query, num_queries, num_tokens, LENGTH, KEYS)
        k_tile = load_rows(k, token * GROUPS + group, is_visible, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token * GROUPS + group, is_visible, SIZE_V, WIDTH_V)
        sum_q = add_grad_q(
            sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible[None, :], peak, log_total, row_delta, SIZE_K
        )
    store_rows(grad_q, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_kv(
    q, k, v, norm, grad, delta, queries, first, grad_k, grad_v, num_queries, num_tokens, num_streams, num_blocks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and values of one block of one stream (row and group), or of KEYS tokens of it.

    `queries` and `first` as `_queries_by_block` gives them. The oldest blocks have the most readers and come first.
    """
    stream = tl.program_id(0).to(tl.int64) % num_streams
    block = tl.program_id(0).to(tl.int64) // num_streams
    group = stream % GROUPS
    within = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    key = block * LENGTH + within
    is_key = (within < LENGTH) & (key < num_tokens)
    key_row = (stream // GROUPS * num_tokens + key) * GROUPS + group
    k_tile = load_rows(k, key_row, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v, key_row, is_key, SIZE_V, WIDTH_V)
    sum_k = tl.zeros([KEYS, WIDTH_K], tl.float32)
    sum_v = tl.zeros([KEYS, WIDTH_V], tl.float32)
    first += stream * num_blocks + block
    stop = tl.load(first + 1) * HEADS
    for start in range(tl.load(first) * HEADS, stop, ROWS):
        pair = start + tl.arange(0, ROWS)  # of a reader and one of its heads
        is_row = pair < stop
        query = tl.load(queries + pair // HEADS, mask=is_row, other=0)
        row = (query * GROUPS + group) * HEADS + pair % HEADS
        position = num_tokens - num_queries + query % num_queries
        q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total = load_norm(norm, row, is_row)
        row_delta = tl.load(delta + row, mask=is_row, other=0.0)
        is_visible = is_key[:, None] & is_row[None, :] & (key[:, None] <= position[None, :])
        sum_k, sum_v = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, row_delta, SIZE_K
        )
    store_rows(grad_k, key_row, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(grad_v, key_row, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit
def _place(HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr):
    """The program's query b·T + t, its group, and the rows of its heads."""
    query, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    return query, group, (query * GROUPS + group) * HEADS + head, head < HEADS


@triton.jit
def _num_steps(slots, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr):
    """Steps of KEYS keys over the slots up to the last that is not empty."""
    slot = tl.arange(0, SLOTS)
    block = tl.load(slots + slot, mask=slot < NUM_SLOTS, other=-1)
    return tl.max(tl.where(block >= 0, slot + 1, 0), 0) * ((LENGTH + KEYS - 1) // KEYS)


@triton.jit
def _keys_of_step(slots, step, query, num_queries, num_tokens, LENGTH: tl.constexpr, KEYS: tl.constexpr):
    """The tokens b·S + s of a step, and which of them the query b·T + t may read."""
    per_slot: tl.constexpr = (LENGTH + KEYS - 1) // KEYS
    block = tl.load(slots + step // per_slot).to(tl.int64)
    within = step % per_slot * KEYS + tl.arange(0, KEYS)
    token = block * LENGTH + within
    position = num_tokens - num_queries + query % num_queries
    is_visible = (within < LENGTH) & (token >= 0) & (token <= position)  # an empty slot's tokens are negative
    return query // num_queries * num_tokens + token, is_visible
