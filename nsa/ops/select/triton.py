"""The selected branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

The output and the gradient of q: one program for each query and group, whose heads are the rows of its products, walks
the blocks that query chose; of groups of 9 to 16 heads it takes four neighbouring queries, which share what Eq. 11
forces on them: see `near_kernels`. Of small groups, and for the gradients of k and v of all, a block's readers come to
it: see `block_kernels`. Nothing is added atomically, so the same inputs give the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops import band_kernels
from nsa.ops.band_kernels import Band
from nsa.ops.geometry import Geometry
from nsa.ops.kernel_tiles import (
    LEAST_SIDE,
    SMALL,
    add_grad_q,
    attend_tile,
    current,
    finish_rows,
    index,
    load_rows,
    make_terms,
    scale,
    side,
    store_rows,
)
from nsa.ops.select import block_kernels, near_kernels
from nsa.ops.tiles import refuse_second_derivatives
from nsa.types import Key, Output, Query, Slots, Value

_SPAN = 128  # queries that attend densely, for the gradients of keys and values
_MOST_HEADS = 64  # rows of one program's products; a group with more heads takes several
# Fastest on an H200, for rows x columns of a query's tile up to 16 x SMALL, and more.
_BY_QUERY = {True: {"num_warps": 1, "num_stages": 2}, False: {"num_warps": 2, "num_stages": 2}}


def selected_attention(q: Query, k: Key, v: Value, slots: Slots, geometry: Geometry, is_chosen: bool = False) -> Output:
    """Attention of each query over the tokens of its chosen blocks, up to itself (Eq. 11 and 12).

    The T queries are the last T of the S key tokens. A query with no readable key gives exactly zero. is_chosen: the
    slots are those of Eq. 11, so that queries in the first n_sel blocks see every key up to themselves.
    """
    out: Tensor = _SelectedAttention.apply(q, k, v, slots, geometry, is_chosen)
    return out


class _SelectedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, is_chosen: bool
    ) -> Tensor:
        q, k, v, slots = (x.contiguous() for x in (q, k, v, slots))
        out, norm = forward(q, k, v, slots, geometry, is_chosen)
        ctx.save_for_backward(q, k, v, out, norm, slots)
        ctx.geometry, ctx.is_chosen = geometry, is_chosen
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        q, k, v, out, norm, slots = ctx.saved_tensors
        return *gradients(grad, q, k, v, out, norm, slots, ctx.geometry, ctx.is_chosen), None, None, None


def forward(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, is_chosen: bool
) -> tuple[Tensor, Tensor]:
    """Output and normaliser [B, T, H, 2] of contiguous tensors."""
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=torch.float32)
    num_dense = geometry.num_dense(k.shape[1] - q.shape[1], q.shape[1]) if is_chosen else 0
    if num_dense:
        band_kernels.attend(q, k, v, Band(num_dense, k.shape[1]), out, norm)
    if num_dense == q.shape[1]:
        return out, norm
    with current(q.device):
        if block_kernels.is_inverted(q, k, v, geometry):
            block_kernels.attend(q, k, v, slots, geometry, num_dense, out, norm)
        elif is_chosen and near_kernels.serves(q, k, v, geometry):
            near_kernels.attend(q, k, v, slots, geometry, num_dense, out, norm)
        else:
            grid, sizes = _by_query(q, k, v, slots, geometry, num_dense)
            _attend[grid](q, k, v, slots, out, norm, q.shape[1], num_dense, k.shape[1], **sizes)
    return out, norm


@without_autocast
def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    slots: Tensor,
    geometry: Geometry,
    is_chosen: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of contiguous q, k and v."""
    grad = grad.to(q.dtype).contiguous()
    grad_q = torch.empty_like(q)
    terms = q.new_empty(*q.shape[:3], 4, dtype=torch.float32)
    num_dense = geometry.num_dense(k.shape[1] - q.shape[1], q.shape[1]) if is_chosen else 0
    is_whole = num_dense == q.shape[1]
    num_keys = k.shape[1] if is_whole else k.shape[1] - q.shape[1] + num_dense if num_dense else 0
    # What is added to further is in float32; by spans of queries, since these keys alone are few programs.
    span = q.shape[1] if is_whole else _SPAN
    shapes = [(-(-num_dense // span), x.shape[0], num_keys, *x.shape[2:]) for x in (k, v)]
    part_k, part_v = (q.new_empty(shape, dtype=None if is_whole else torch.float32) for shape in shapes)
    if num_dense:
        band = Band(num_dense, k.shape[1])
        band_kernels.attend_backward(grad, q, k, v, band, out, norm, grad_q, terms, (part_k, part_v), span)
    if is_whole:
        return grad_q, part_k[0], part_v[0]
    inverted = block_kernels.is_inverted(q, k, v, geometry)
    with current(q.device):
        if inverted:
            block_kernels.write_terms(grad, out, norm, num_dense, k.shape[1], terms)
        elif is_chosen and near_kernels.serves(q, k, v, geometry):
            near_kernels.attend_backward_q(q, k, v, slots, geometry, num_dense, out, norm, grad, grad_q, terms)
        else:
            grid, sizes = _by_query(q, k, v, slots, geometry, num_dense)
            _attend_backward_q[grid](
                q, k, v, slots, out, norm, grad, grad_q, terms, q.shape[1], num_dense, k.shape[1], **sizes
            )
        grad_k, grad_v = block_kernels.attend_backward(
            grad, q, k, v, slots, geometry, num_dense, terms, (part_k, part_v), grad_q if inverted else None
        )
    return grad_q, grad_k, grad_v


def _by_query(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, num_dense: int
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The grid of the kernels that walk a query's blocks, the sizes they are compiled for and how they are launched."""
    sizes = block_kernels.sizes_of(q, k, v, geometry)
    rows = side(min(sizes["HEADS"], _MOST_HEADS))
    grid = q.shape[0] * (q.shape[1] - num_dense), k.shape[2], -(-sizes["HEADS"] // rows)
    is_small = rows * max(sizes["WIDTH_K"], sizes["WIDTH_V"]) <= LEAST_SIDE * SMALL
    more = {"NUM_SLOTS": slots.shape[-1], "SLOTS": side(slots.shape[-1]), "ROWS": rows}
    return grid, {**sizes, **more, **_BY_QUERY[is_small]}


_VARYING = ("num_queries", "num_dense", "num_tokens")  # vary, and are no reason to compile again


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, slots, out, norm, num_queries, num_dense, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of one query and group."""
    position, slot_row, key_row, first_row, row, is_row = _place(
        num_queries, num_dense, num_tokens, HEADS, GROUPS, ROWS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    slots += slot_row * NUM_SLOTS
    k += key_row * SIZE_K
    v += key_row * SIZE_V
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for step in range(_num_steps(slots, NUM_SLOTS, SLOTS, LENGTH, KEYS)):
        token, is_visible = _keys_of_step(slots, step, position, LENGTH, KEYS, WIDE)
        k_tile = load_rows(k, token * GROUPS, is_visible, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token * GROUPS, is_visible, SIZE_V, WIDTH_V)
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible[None, :], peak, total, mixed, SIZE_K)
    finish_rows(
        out + first_row * SIZE_V, norm + first_row * 2, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V
    )  # fmt: skip


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, slots, out, norm, grad, grad_q, terms, num_queries, num_dense, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of one query and group."""
    position, slot_row, key_row, first_row, row, is_row = _place(
        num_queries, num_dense, num_tokens, HEADS, GROUPS, ROWS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    out_tile = load_rows(out + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    peak, log_total, delta = make_terms(
        terms + first_row * 4, norm + first_row * 2, row, is_row, position, grad_tile, out_tile, ROWS
    )
    slots += slot_row * NUM_SLOTS
    k += key_row * SIZE_K
    v += key_row * SIZE_V
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    for step in range(_num_steps(slots, NUM_SLOTS, SLOTS, LENGTH, KEYS)):
        token, is_visible = _keys_of_step(slots, step, position, LENGTH, KEYS, WIDE)
        k_tile = load_rows(k, token * GROUPS, is_visible, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token * GROUPS, is_visible, SIZE_V, WIDTH_V)
        sum_q = add_grad_q(
            sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible[None, :], peak, log_total, delta, SIZE_K
        )
    store_rows(grad_q + first_row * SIZE_K, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit
def _place(
    num_queries, num_dense, num_tokens, HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The position of the program's query; where its slots, its group's keys and its heads' rows begin; those rows."""
    batch = (tl.program_id(0) // (num_queries - num_dense)).to(tl.int64)
    query, group = num_dense + tl.program_id(0) % (num_queries - num_dense), tl.program_id(1)
    position = num_tokens - num_queries + query
    slot_row = (batch * num_queries + query) * GROUPS + group
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    return position, slot_row, batch * num_tokens * GROUPS + group, slot_row * HEADS, row, row < HEADS


@triton.jit
def _num_steps(slots, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr):
    """Steps of KEYS keys over the slots up to the last that is not empty."""
    slot = tl.arange(0, SLOTS)
    block = tl.load(slots + slot, mask=slot < NUM_SLOTS, other=-1)
    return tl.max(tl.where(block >= 0, slot + 1, 0), 0) * ((LENGTH + KEYS - 1) // KEYS)


@triton.jit
def _keys_of_step(slots, step, position, LENGTH: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr):
    """The tokens of a step, and which of them the query at `position` may read."""
    per_slot: tl.constexpr = (LENGTH + KEYS - 1) // KEYS
    block = tl.load(slots + step // per_slot)
    within = step % per_slot * KEYS + tl.arange(0, KEYS)
    token = index(block, WIDE) * LENGTH + within
    is_visible = (within < LENGTH) & (token >= 0) & (token <= position)  # an empty slot's tokens are negative
    return token, is_visible
