"""Kernels of the selected branch in which neighbouring queries read together the blocks that Eq. 11 forces on all.

A program has a few neighbouring queries of a group, a warp for each. What they all read, block 0 and the two newest, is
loaded once and multiplied by all their heads; then each walks the blocks that it chose by itself, whose products have
queries as their first dimension. A query's sums and their order are its own: it has the same bits whatever its
neighbours. The keys of a block that is neither of these lie in the past of its query, so that nothing is masked there.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.geometry import NUM_FORCED, Geometry
from nsa.ops.kernel_tiles import (
    LEAST_SIDE,
    add_grad_q,
    attend_tile,
    factor,
    finish_rows,
    index,
    load_rows,
    make_terms,
    products_overlap,
    scale,
    store_rows,
)
from nsa.ops.select import block_kernels
from nsa.ops.select.block_kernels import MOST_KEYS

_QUERIES, _KEYS = 4, 32  # of one program, and of a chosen block at once; fastest on an H200, as is what follows
_FORWARD, _BACKWARD_Q = {"num_warps": 4, "num_stages": 3}, {"num_warps": 4, "num_stages": 2}
_LEAST_OVERLAPPED = 512  # queries that kernels for Hopper GPUs serve: of fewer, what is gained the launch takes
_VARYING = ("num_queries", "num_dense", "num_tokens", "num_tiles")


def serves(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> bool:
    """Whether these kernels serve queries whose slots are those of Eq. 11."""
    heads, length = q.shape[2] // k.shape[2], geometry.l_sel
    fits = max(q.shape[-1], v.shape[-1]) <= 128 and LEAST_SIDE // 2 < heads <= LEAST_SIDE
    return fits and length in (16, 32, MOST_KEYS) and geometry.n_sel > NUM_FORCED and k.shape[1] >= length


def attend(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, num_dense: int, out: Tensor, norm: Tensor
) -> None:
    """Writes output and normaliser [B, T, H, 2] of all queries but the first num_dense."""
    if _are_loaded_by_engine(q, k, v, geometry, num_dense):
        from nsa.ops.hopper import select  # what it is written in, not every Triton has

        select.attend(q, k, v, slots, geometry, num_dense, out, norm)
        return
    num_tiles, sizes = _sizes(q, k, v, slots, geometry, num_dense)
    _attend[q.shape[0] * num_tiles, k.shape[2]](
        q, k, v, slots, out, norm, q.shape[1], num_dense, k.shape[1], num_tiles, **sizes, **_FORWARD
    )


def attend_backward_q(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    geometry: Geometry,
    num_dense: int,
    out: Tensor,
    norm: Tensor,
    grad: Tensor,
    grad_q: Tensor,
    terms: Tensor,
) -> None:
    """Writes the gradient of q and terms [B, T, H, 4] of all queries but the first num_dense."""
    if _are_loaded_by_engine(q, k, v, geometry, num_dense):
        from nsa.ops.hopper import select_gradients

        select_gradients.attend_backward_q(q, k, v, slots, geometry, num_dense, out, norm, grad, grad_q, terms)
        return
    num_tiles, sizes = _sizes(q, k, v, slots, geometry, num_dense)
    _attend_backward_q[q.shape[0] * num_tiles, k.shape[2]](
        q, k, v, slots, out, norm, grad, grad_q, terms, q.shape[1], num_dense, k.shape[1], num_tiles,
        **sizes, **_BACKWARD_Q,
    )  # fmt: skip


def _are_loaded_by_engine(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, num_dense: int) -> bool:
    """Whether the kernels for Hopper GPUs serve these queries."""
    is_served = geometry.l_sel == MOST_KEYS and q.shape[1] - num_dense >= _LEAST_OVERLAPPED
    return is_served and products_overlap(q, k, v)


def _sizes(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, num_dense: int
) -> tuple[int, dict[str, Any]]:
    """Tiles of a row's queries, and what the kernels are compiled for."""
    sizes = block_kernels.sizes_of(q, k, v, geometry)
    first, last = k.shape[1] - q.shape[1] + num_dense, k.shape[1] - 1  # positions
    more = {"NUM_SLOTS": slots.shape[-1], "ROWS": LEAST_SIDE, "QUERIES": _QUERIES, "KEYS": min(_KEYS, geometry.l_sel)}
    return last // _QUERIES - first // _QUERIES + 1, sizes | more | {"NUM_NEWEST": NUM_FORCED - 1}


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, slots, out, norm, num_queries, num_dense, num_tokens, num_tiles,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, ROWS: tl.constexpr,
    QUERIES: tl.constexpr, NUM_NEWEST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of QUERIES queries of a group."""
    start, first_row, row, is_row, position, first_key, slot_row, is_query = _place(
        num_queries, num_dense, num_tokens, num_tiles, HEADS, GROUPS, ROWS, QUERIES, WIDE
    )
    k += first_key * SIZE_K
    v += first_key * SIZE_V
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    peak = tl.full([QUERIES * ROWS], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES * ROWS], tl.float32)
    mixed = tl.zeros([QUERIES * ROWS, WIDTH_V], tl.float32)
    for step in range(1 + NUM_NEWEST):
        token, is_key = _keys_of_all(step, start, num_tokens, LENGTH, QUERIES, NUM_NEWEST)
        k_tile = load_rows(k, index(token, WIDE) * GROUPS, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, index(token, WIDE) * GROUPS, is_key, SIZE_V, WIDTH_V)
        is_visible = token[None, :] <= position[:, None]
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible, peak, total, mixed, SIZE_K)
    peak, total, mixed = _attend_chosen(
        tl.reshape(q_tile, [QUERIES, ROWS, WIDTH_K]), k, v, slots + slot_row * NUM_SLOTS + 1, is_query,
        tl.reshape(peak, [QUERIES, ROWS]), tl.reshape(total, [QUERIES, ROWS]),
        tl.reshape(mixed, [QUERIES, ROWS, WIDTH_V]), GROUPS, SIZE_K, SIZE_V, WIDTH_K, WIDTH_V, LENGTH, KEYS,
        NUM_SLOTS - 1 - NUM_NEWEST, WIDE,
    )  # fmt: skip
    finish_rows(
        out + first_row * SIZE_V, norm + first_row * 2, row, is_row, tl.reshape(peak, [QUERIES * ROWS]),
        tl.reshape(total, [QUERIES * ROWS]), tl.reshape(mixed, [QUERIES * ROWS, WIDTH_V]), SIZE_V, WIDTH_V,
    )  # fmt: skip


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, slots, out, norm, grad, grad_q, terms, num_queries, num_dense, num_tokens, num_tiles,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, ROWS: tl.constexpr,
    QUERIES: tl.constexpr, NUM_NEWEST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of QUERIES queries of a group."""
    start, first_row, row, is_row, position, first_key, slot_row, is_query = _place(
        num_queries, num_dense, num_tokens, num_tiles, HEADS, GROUPS, ROWS, QUERIES, WIDE
    )
    k += first_key * SIZE_K
    v += first_key * SIZE_V
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    out_tile = load_rows(out + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    peak, log_total, delta = make_terms(
        terms + first_row * 4, norm + first_row * 2, row, is_row, position, grad_tile, out_tile, QUERIES * ROWS
    )
    sum_q = tl.zeros([QUERIES * ROWS, WIDTH_K], tl.float32)
    for step in range(1 + NUM_NEWEST):
        token, is_key = _keys_of_all(step, start, num_tokens, LENGTH, QUERIES, NUM_NEWEST)
        k_tile = load_rows(k, index(token, WIDE) * GROUPS, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, index(token, WIDE) * GROUPS, is_key, SIZE_V, WIDTH_V)
        is_visible = token[None, :] <= position[:, None]
        sum_q = add_grad_q(sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K)
    sum_q = _add_chosen(
        tl.reshape(q_tile, [QUERIES, ROWS, WIDTH_K]), tl.reshape(grad_tile, [QUERIES, ROWS, WIDTH_V]), k, v,
        slots + slot_row * NUM_SLOTS + 1, is_query, tl.reshape(peak + log_total, [QUERIES, ROWS]),
        tl.reshape(delta, [QUERIES, ROWS]), tl.reshape(sum_q, [QUERIES, ROWS, WIDTH_K]),
        GROUPS, SIZE_K, SIZE_V, WIDTH_K, WIDTH_V, LENGTH, KEYS, NUM_SLOTS - 1 - NUM_NEWEST, WIDE,
    )  # fmt: skip
    sum_q = tl.reshape(sum_q, [QUERIES * ROWS, WIDTH_K])
    store_rows(grad_q + first_row * SIZE_K, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit
def _place(
    num_queries, num_dense, num_tokens, num_tiles, HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    QUERIES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The position of a tile's first query; where its batch row begins; its rows, which exist, and their positions.

    Where its keys begin; the rows of its queries' slots, and which of them exist.
    """
    batch, group = (tl.program_id(0) // num_tiles).to(tl.int64), tl.program_id(1)
    first_query = num_tokens - num_queries
    # Tiles begin at multiples of QUERIES, so that the newest block is one to all of a tile.
    start = ((first_query + num_dense) // QUERIES + tl.program_id(0) % num_tiles) * QUERIES
    pair = tl.arange(0, QUERIES * ROWS)
    query = start - first_query + pair // ROWS
    is_row = (pair % ROWS < HEADS) & (query >= num_dense) & (query < num_queries)
    row = index((query * GROUPS + group) * HEADS + pair % ROWS, WIDE)
    own = start - first_query + tl.arange(0, QUERIES)
    slot_row = (batch * num_queries + own) * GROUPS + group
    first_key = batch * num_tokens * GROUPS + group
    is_query = (own >= num_dense) & (own < num_queries)
    return start, batch * num_queries * GROUPS * HEADS, row, is_row, first_query + query, first_key, slot_row, is_query


@triton.jit
def _keys_of_all(
    step, start, num_tokens, LENGTH: tl.constexpr, QUERIES: tl.constexpr, NUM_NEWEST: tl.constexpr
):  # fmt: skip
    """The tokens of a block that all queries of a tile read, and which of them any does: block 0, then the newest."""
    block = tl.where(step == 0, 0, start // LENGTH - NUM_NEWEST + step)
    token = block * LENGTH + tl.arange(0, LENGTH)
    return token, token < tl.minimum(start + QUERIES, num_tokens)


@triton.jit
def _attend_chosen(
    q_tile, k, v, slots, is_query, peak, total, mixed, GROUPS: tl.constexpr, SIZE_K: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Peak, sum and unnormalised output [queries, rows, …] with the chosen blocks of each query."""
    for step in range(NUM_CHOSEN * (LENGTH // KEYS)):
        row = _rows_of_step(slots, is_query, step, GROUPS, LENGTH, KEYS, WIDE)
        k_tile = _load(k, row, SIZE_K, WIDTH_K)
        v_tile = _load(v, row, SIZE_V, WIDTH_V)
        scores = tl.dot(q_tile, tl.trans(k_tile, (0, 2, 1)))
        highest = tl.maximum(peak, tl.max(scores, 2) * factor(SIZE_K))
        weights = tl.exp2(scores * factor(SIZE_K) - highest[:, :, None])
        shrink = tl.exp2(peak - highest)
        mixed = tl.dot(weights.to(v_tile.dtype), v_tile, mixed * shrink[:, :, None])
        peak, total = highest, total * shrink + tl.sum(weights, 2)
    return peak, total, mixed


@triton.jit
def _add_chosen(
    q_tile, grad_tile, k, v, slots, is_query, log_sum, delta, sum_q, GROUPS: tl.constexpr, SIZE_K: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of q, not scaled, [queries, rows, Dk] with the parts of the chosen blocks of each query."""
    for step in range(NUM_CHOSEN * (LENGTH // KEYS)):
        row = _rows_of_step(slots, is_query, step, GROUPS, LENGTH, KEYS, WIDE)
        k_tile = _load(k, row, SIZE_K, WIDTH_K)
        v_tile = _load(v, row, SIZE_V, WIDTH_V)
        scores = tl.dot(q_tile, tl.trans(k_tile, (0, 2, 1)))
        weights = tl.exp2(scores * factor(SIZE_K) - log_sum[:, :, None])
        grad_scores = weights * (tl.dot(grad_tile, tl.trans(v_tile, (0, 2, 1))) - delta[:, :, None])
        sum_q = tl.dot(grad_scores.to(k_tile.dtype), k_tile, sum_q)
    return sum_q


@triton.jit
def _rows_of_step(
    slots, is_query, step, GROUPS: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The rows [queries, keys] of KEYS keys of a chosen block of each query; of none those of block 0."""
    tiles: tl.constexpr = LENGTH // KEYS
    block = index(tl.load(slots + step // tiles, mask=is_query, other=0), WIDE)
    token = (block * LENGTH + step % tiles * KEYS)[:, None] + tl.arange(0, KEYS)[None, :]
    return token * GROUPS


@triton.jit
def _load(x, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows [queries, keys] of `x` [..., SIZE], filled up with zeros to WIDTH columns."""
    column = tl.arange(0, WIDTH)
    if SIZE == WIDTH:
        found = tl.load(x + (row[:, :, None] * SIZE + column[None, None, :]))
    else:
        found = tl.load(x + (row[:, :, None] * SIZE + column), mask=(column < SIZE)[None, None, :], other=0.0)
    return found
