"""Attention over a band of keys as Triton kernels: a window, or all that came before.

Rows of a program's products are the heads of a group at neighbouring queries, so that few keys are read beyond the
window. Tiles of keys begin at multiples of their length, wherever the window does: what a row adds up, and in which
order, is its own. Nothing is added atomically.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.kernel_tiles import (
    SMALL,
    Sight,
    add_grad_kv,
    add_grad_q,
    attend_tile,
    current,
    finish_rows,
    load_rows,
    load_terms,
    make_terms,
    products_overlap,
    queries_fit,
    rows_from,
    rows_that_fit,
    scale,
    side,
    store_rows,
    stream_of,
)

# Rows and keys of one product, and how the kernels are launched: fastest on an H200.
_SIDES, _FORWARD = (64, 64), {"num_warps": 4, "num_stages": 3}
_SIDES_BACKWARD_KV, _BACKWARD_KV = (32, 64), {"num_warps": 4, "num_stages": 3}
_BACKWARD_Q = {  # of heads up to SMALL, and of larger ones
    True: ((64, 64), {"num_warps": 4, "num_stages": 3}),
    False: ((64, 32), {"num_warps": 4, "num_stages": 2}),
}


_LEAST_OVERLAPPED = 8192  # queries that kernels for Hopper GPUs serve: of fewer, what is gained the launch takes


class Band(NamedTuple):
    """The first `num_queries` of the last T of S tokens; each sees the last `window` keys, its own included."""

    num_queries: int
    window: int


def attend(q: Tensor, k: Tensor, v: Tensor, band: Band, out: Tensor, norm: Tensor) -> None:
    """Writes output and normaliser [B, T, H, 2] of the band's queries; the tensors are contiguous."""
    lengths = _lengths(q, k, band)
    with current(q.device):
        if band.num_queries >= _LEAST_OVERLAPPED and products_overlap(q, k, v):
            from nsa.ops.hopper import forward  # what it is written in, not every Triton has

            forward.attend(q, k, v, Sight(k.shape[1] - q.shape[1], band.num_queries, window=lengths[4]), out, norm)
            return
        sizes = _sizes(q, k, v, _SIDES, _FORWARD["num_stages"])
        _attend[_by_rows(k, band, sizes)](q, k, v, out, norm, *lengths, **sizes, **_FORWARD)


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Band,
    out: Tensor,
    norm: Tensor,
    grad_q: Tensor,
    terms: Tensor,
    parts: tuple[Tensor, Tensor],
    span: int,
) -> None:
    """Writes the gradient of q and terms [B, T, H, 4] of the band's queries, and parts [spans, B, n, G, D].

    What each span of so many queries adds to the gradients of the first n keys and values. Every key that the band's
    queries see is among these. All tensors are contiguous.
    """
    lengths, (part_k, part_v) = _lengths(q, k, band), parts
    num_spans, _, num_written = part_k.shape[:3]
    with current(q.device):
        is_overlapped = band.num_queries >= _LEAST_OVERLAPPED and products_overlap(q, k, v, grad)
        if is_overlapped and queries_fit(q.shape[2] // k.shape[2]):
            from nsa.ops.hopper import gradients

            sight = Sight(k.shape[1] - q.shape[1], band.num_queries, window=lengths[4])
            gradients.gradients(grad, q, k, v, sight, out, norm, grad_q, terms, parts, span)
            return
        # For larger heads the compiler has one product wait for the other where terms are loaded as tiles.
        is_small = max(q.shape[-1], v.shape[-1]) <= SMALL
        sides, launched = _BACKWARD_Q[is_small]
        sizes = _sizes(q, k, v, sides, launched["num_stages"])
        _attend_backward_q[_by_rows(k, band, sizes)](
            q, k, v, out, norm, grad, grad_q, terms, *lengths, **sizes, **launched
        )
        sizes = _sizes(q, k, v, _SIDES_BACKWARD_KV, _BACKWARD_KV["num_stages"])
        _attend_backward_kv[lengths[0] * -(-num_written // sizes["KEYS"]), num_spans](
            q, k, v, grad, terms, part_k, part_v, num_written, span, *lengths, **sizes, AS_TILE=is_small, **_BACKWARD_KV
        )


def _by_rows(k: Tensor, band: Band, sizes: dict[str, int]) -> tuple[int]:
    """A program for each stream (row and group) and each tile of the rows of its queries."""
    return (k.shape[0] * k.shape[2] * -(-band.num_queries * sizes["HEADS"] // sizes["ROWS"]),)


def _lengths(q: Tensor, k: Tensor, band: Band) -> tuple[int, int, int, int, int]:
    """Streams, queries of each and the band's among them, keys of each, and keys that a query sees at most."""
    return k.shape[0] * k.shape[2], q.shape[1], band.num_queries, k.shape[1], min(band.window, k.shape[1])


def _sizes(q: Tensor, k: Tensor, v: Tensor, sides: tuple[int, int], num_stages: int) -> dict[str, int]:
    """What the kernels are compiled for."""
    width_k, width_v = side(q.shape[-1]), side(v.shape[-1])
    return {
        "HEADS": q.shape[2] // k.shape[2],
        "GROUPS": k.shape[2],
        "SIZE_K": q.shape[-1],
        "SIZE_V": v.shape[-1],
        "WIDTH_K": width_k,
        "WIDTH_V": width_v,
        "ROWS": rows_that_fit(sides[0], q.device, width_k, width_v, num_stages=2),
        "KEYS": rows_that_fit(sides[1], q.device, width_k, width_v, num_stages=num_stages),
    }


# Vary, and are no reason to compile again.
_VARYING = ("num_streams", "num_queries", "num_served", "num_keys", "window", "num_written", "span")


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, out, norm, num_streams, num_queries, num_served, num_keys, window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of one tile of rows."""
    first_key, first_row, row, is_row, position, begin, first_whole, last_whole, stop = _place(
        num_streams, num_queries, num_served, num_keys, window, HEADS, GROUPS, ROWS, KEYS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    k += first_key * SIZE_K
    v += first_key * SIZE_V
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    key = tl.arange(0, KEYS)
    for start in range(begin, stop, KEYS):
        is_key = start + key < stop
        k_tile = load_rows(k + start * tl.full([], GROUPS * SIZE_K, tl.int64), key * GROUPS, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v + start * tl.full([], GROUPS * SIZE_V, tl.int64), key * GROUPS, is_key, SIZE_V, WIDTH_V)
        is_visible = _is_visible((start + key)[None, :], position[:, None], window)
        is_edge = (start < first_whole) | (start > last_whole)
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible, peak, total, mixed, SIZE_K, is_edge)
    finish_rows(out + first_row * SIZE_V, norm + first_row * 2, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, out, norm, grad, grad_q, terms, num_streams, num_queries, num_served, num_keys, window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of one tile of rows."""
    first_key, first_row, row, is_row, position, begin, first_whole, last_whole, stop = _place(
        num_streams, num_queries, num_served, num_keys, window, HEADS, GROUPS, ROWS, KEYS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    out_tile = load_rows(out + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    peak, log_total, delta = make_terms(
        terms + first_row * 4, norm + first_row * 2, row, is_row, position, grad_tile, out_tile, ROWS
    )
    k += first_key * SIZE_K
    v += first_key * SIZE_V
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    key = tl.arange(0, KEYS)
    for start in range(begin, stop, KEYS):
        is_key = start + key < stop
        k_tile = load_rows(k + start * tl.full([], GROUPS * SIZE_K, tl.int64), key * GROUPS, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v + start * tl.full([], GROUPS * SIZE_V, tl.int64), key * GROUPS, is_key, SIZE_V, WIDTH_V)
        is_visible = _is_visible((start + key)[None, :], position[:, None], window)
        is_edge = (start < first_whole) | (start > last_whole)
        sum_q = add_grad_q(
            sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K, is_edge
        )
    store_rows(grad_q + first_row * SIZE_K, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_kv(
    q, k, v, grad, terms, part_k, part_v, num_written, span, num_streams, num_queries, num_served, num_keys,
    window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, AS_TILE: tl.constexpr,
):  # fmt: skip
    """What one span of queries adds to the gradients of one tile of keys and values of one stream.

    part_k [spans, B, num_written, G, Dk] and part_v; zero where no query sees a key.
    """
    batch, group, tile = stream_of(num_streams, GROUPS)
    key = tile * KEYS + tl.arange(0, KEYS)
    is_key = key < num_keys
    key_row = tl.arange(0, KEYS) * GROUPS
    first_key = (batch * num_keys + tile * KEYS) * GROUPS + group
    k_tile = load_rows(k + first_key * SIZE_K, key_row, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v + first_key * SIZE_V, key_row, is_key, SIZE_V, WIDTH_V)
    first_row = (batch * num_queries * GROUPS + group) * HEADS
    q += first_row * SIZE_K
    grad += first_row * SIZE_V
    terms += first_row * 4
    sum_k = tl.zeros([KEYS, WIDTH_K], tl.float32)
    sum_v = tl.zeros([KEYS, WIDTH_V], tl.float32)
    first_query = num_keys - num_queries
    begin = tl.maximum(tile * KEYS - first_query, tl.program_id(1) * span) * HEADS
    stop = tl.minimum(tl.program_id(1) * span + span, num_served)
    stop = tl.minimum(tile * KEYS + KEYS - 1 + window - first_query, stop) * HEADS
    # Rows that see the tile whole.
    first_whole = (tile * KEYS + KEYS - 1 - first_query) * HEADS
    last_whole = (tile * KEYS + window - first_query) * HEADS - ROWS
    for start in range(begin, stop, ROWS):
        query, first, row = rows_from(start, HEADS, GROUPS, ROWS)
        is_row = start + tl.arange(0, ROWS) < stop
        q_tile = load_rows(q + first * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad + first * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total, delta, kept = load_terms(terms + first * 4, row, is_row, ROWS, AS_TILE)
        position = kept if AS_TILE else first_query + query
        is_visible = _is_visible(key[:, None], position[None, :], window)
        is_edge = (start < first_whole) | (start > last_whole)
        sum_k, sum_v, _ = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K, is_edge
        )
    first_part = tl.program_id(1).to(tl.int64) * num_streams * num_written
    first_key = first_part + (batch * num_written + tile * KEYS) * GROUPS + group
    is_key = key < num_written
    store_rows(part_k + first_key * SIZE_K, key_row, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(part_v + first_key * SIZE_V, key_row, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit
def _place(
    num_streams, num_queries, num_served, num_keys, window, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Where the program's keys and rows begin; its rows and their positions; the tiles of keys that they see.

    Of these: where the first begins, the first and the last that every row sees whole, and where the last key ends.
    """
    batch, group, tile = stream_of(num_streams, GROUPS)
    query, first, row = rows_from(tile * ROWS, HEADS, GROUPS, ROWS)
    first_query = num_keys - num_queries
    oldest = first_query + tile * ROWS // HEADS
    youngest = first_query + tl.minimum((tile * ROWS + ROWS - 1) // HEADS, num_served - 1)
    begin = tl.maximum(oldest - window + 1, 0) // KEYS * KEYS
    first_row = (batch * num_queries * GROUPS + group) * HEADS + first
    first_key = batch * num_keys * GROUPS + group
    is_row, position = query < num_served, first_query + query
    return first_key, first_row, row, is_row, position, begin, youngest - window + 1, oldest - KEYS + 1, youngest + 1


@triton.jit
def _is_visible(key, position, window):
    """Whether the query at `position` sees `key`; broadcasts."""
    return (key <= position) & (key > position - window)
