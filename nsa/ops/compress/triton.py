"""The compressed branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

Rows of a program's products are the heads of a group at neighbouring queries. They walk the compressed blocks in two
loops: tiles that the oldest of them sees whole, where nothing is masked, then the staircase up to the youngest. The
gradients of keys and values are added up over spans of queries, each in float32 by a program of its own, and the spans
in order. Nothing is added atomically.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.geometry import Geometry
from nsa.ops.kernel_tiles import (
    Sight,
    add_grad_kv,
    add_grad_q,
    attend_tile,
    current,
    finish_rows,
    load_keys,
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
    tiles_of,
)
from nsa.ops.tiles import refuse_second_derivatives
from nsa.types import CompressedKey, CompressedValue, Output, Query

_ROWS, _KEYS = 64, 64  # of one product; fastest on an H200, as is what follows
_ROWS_BACKWARD_Q, _ROWS_BACKWARD_KV = 64, 32
_FORWARD = {"num_warps": 4, "num_stages": 3}
_BACKWARD_Q, _BACKWARD_KV = {"num_warps": 4, "num_stages": 2}, {"num_warps": 4, "num_stages": 3}
_LEAST_TILED = 512  # compressed blocks
_LEAST_OVERLAPPED = 512  # of them that kernels for Hopper GPUs serve: of fewer, what is gained the launch takes
_MOST_SPANS, _LEAST_SPAN = 32, 256  # of queries, for the gradients of keys and values
_SUMMED = 256  # numbers of those that one program adds up


def compressed_attention(
    q: Query, k_cmp: CompressedKey, v_cmp: CompressedValue, geometry: Geometry, first_query: int
) -> tuple[Output, Tensor]:
    """Attention of query t = first_query + i over the compressed blocks that end at or before t.

    And its normaliser [B, T, H, 2], which is not differentiated.
    """
    out, norm = _CompressedAttention.apply(q, k_cmp, v_cmp, geometry, first_query)
    return out, norm


class _CompressedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, first_query: int
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out, norm = forward(q, k, v, geometry, first_query)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.mark_non_differentiable(norm)
        ctx.set_materialize_grads(False)
        ctx.geometry, ctx.first_query = geometry, first_query
        return out, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _grad_norm: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        if grad is None:
            return (None,) * 5
        q, k, v, out, norm = ctx.saved_tensors
        return *gradients(grad, q, k, v, out, norm, ctx.geometry, ctx.first_query), None, None


def forward(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, first_query: int) -> tuple[Tensor, Tensor]:
    """Output and normaliser of contiguous q, k and v."""
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=torch.float32)
    if k.shape[1] >= _LEAST_OVERLAPPED and products_overlap(q, k, v):
        from nsa.ops.hopper import forward  # what it is written in, not every Triton has

        sight = Sight(first_query, q.shape[1], length=geometry.l, stride=geometry.d)
        with current(q.device):
            forward.attend(q, k, v, sight, out, norm)
        return out, norm
    lengths, sizes = _lengths(q, k, first_query), _sizes(q, k, v, geometry, _ROWS, _FORWARD["num_stages"])
    tiles, tiled = _key_tiles(k, v, sizes)
    with current(q.device):
        _attend[_by_rows(q, k, sizes)](q, k, v, *tiles, out, norm, *lengths, **sizes, TILED=tiled, **_FORWARD)
    return out, norm


@without_autocast
def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, geometry: Geometry, first_query: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of contiguous q, k and v."""
    grad = grad.to(q.dtype).contiguous()
    grad_q = torch.empty_like(q)
    terms = q.new_empty(*q.shape[:3], 4, dtype=torch.float32)
    lengths, sizes = _lengths(q, k, first_query), _sizes(q, k, v, geometry, _ROWS_BACKWARD_Q, _BACKWARD_Q["num_stages"])
    span = max(_LEAST_SPAN, -(-q.shape[1] // _MOST_SPANS))
    num_spans = -(-q.shape[1] // span)
    part_k, part_v = (x.new_empty(num_spans, *x.shape, dtype=torch.float32) for x in (k, v))
    if k.shape[1] >= _LEAST_OVERLAPPED and products_overlap(q, k, v, grad) and queries_fit(sizes["HEADS"]):
        from nsa.ops.hopper import gradients as overlapped

        sight = Sight(first_query, q.shape[1], length=geometry.l, stride=geometry.d)
        with current(q.device):
            overlapped.gradients(grad, q, k, v, sight, out, norm, grad_q, terms, (part_k, part_v), span)
        return grad_q, *_sums(part_k, part_v, k.dtype)
    tiles, tiled = _key_tiles(k, v, sizes)
    with current(q.device):
        _attend_backward_q[_by_rows(q, k, sizes)](
            q, k, v, *tiles, out, norm, grad, grad_q, terms, *lengths, **sizes, TILED=tiled, **_BACKWARD_Q
        )
        if k.shape[1]:
            sizes = _sizes(q, k, v, geometry, _ROWS_BACKWARD_KV, _BACKWARD_KV["num_stages"])
            _attend_backward_kv[k.shape[0] * k.shape[2] * -(-k.shape[1] // sizes["KEYS"]), num_spans](
                q, k, v, grad, terms, part_k, part_v, *lengths, span, **sizes, **_BACKWARD_KV
            )
    return grad_q, *_sums(part_k, part_v, k.dtype)


def _sums(part_k: Tensor, part_v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums over spans [spans, …], at most _MOST_SPANS, of both, rounded once."""
    found_k, found_v = (x.new_empty(x.shape[1:], dtype=dtype) for x in (part_k, part_v))
    num_programs = -(-max(found_k.numel(), found_v.numel()) // _SUMMED)
    if num_programs:
        with current(part_k.device):
            _sum_spans[num_programs, 2](
                part_k, part_v, found_k, found_v, len(part_k), found_k.numel(), found_v.numel(),
                SPANS=1 << (len(part_k) - 1).bit_length(), NUMBERS=_SUMMED,
            )  # fmt: skip
    return found_k, found_v


def _key_tiles(k: Tensor, v: Tensor, sizes: dict[str, int]) -> tuple[tuple[Any, Any], bool]:
    """Keys and values as the copy engine loads them, and whether it does; for few, launching would take longer."""
    if k.shape[1] >= _LEAST_TILED:
        tiles = tiles_of(k, sizes["KEYS"], sizes["WIDTH_K"]), tiles_of(v, sizes["KEYS"], sizes["WIDTH_V"])
        if not any(isinstance(x, Tensor) for x in tiles):
            return tiles, True
    return (k, v), False


def _by_rows(q: Tensor, k: Tensor, sizes: dict[str, Any]) -> tuple[int]:
    """A program for each stream (row and group) and each tile of its T·h rows."""
    return (k.shape[0] * k.shape[2] * -(-q.shape[1] * sizes["HEADS"] // sizes["ROWS"]),)


def _lengths(q: Tensor, k: Tensor, first_query: int) -> tuple[int, int, int, int]:
    """Streams, queries and keys of each, and the position of the first query."""
    return k.shape[0] * k.shape[2], q.shape[1], k.shape[1], first_query


def _sizes(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, rows: int, num_stages: int) -> dict[str, Any]:
    """What the kernels are compiled for."""
    width_k, width_v = side(q.shape[-1]), side(v.shape[-1])
    return {
        "HEADS": q.shape[2] // k.shape[2],
        "GROUPS": k.shape[2],
        "SIZE_K": q.shape[-1],
        "SIZE_V": v.shape[-1],
        "WIDTH_K": width_k,
        "WIDTH_V": width_v,
        "LENGTH": geometry.l,
        "STRIDE": geometry.d,
        "ROWS": rows_that_fit(rows, q.device, width_k, width_v, num_stages=2),
        "KEYS": rows_that_fit(_KEYS, q.device, width_k, width_v, num_stages=num_stages),
    }


# Vary, and are no reason to compile again.
_VARYING = ("num_streams", "num_queries", "num_keys", "first_query", "span")


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, k_tiles, v_tiles, out, norm, num_streams, num_queries, num_keys, first_query,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    TILED: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of one tile of rows."""
    batch, group, tile = stream_of(num_streams, GROUPS)
    tile = tl.num_programs(0) // num_streams - 1 - tile  # those that see most come first
    first_row, row, is_row, position, whole, stop = _place(
        batch, group, tile, num_queries, num_keys, first_query, HEADS, GROUPS, LENGTH, STRIDE, ROWS, KEYS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    key = tl.arange(0, KEYS)
    for start in range(0, whole, KEYS):
        k_tile = load_keys(
            k, k_tiles, batch, group, start, whole, num_keys, GROUPS, SIZE_K, WIDTH_K, KEYS, TILED
        )  # fmt: skip
        v_tile = load_keys(
            v, v_tiles, batch, group, start, whole, num_keys, GROUPS, SIZE_V, WIDTH_V, KEYS, TILED
        )  # fmt: skip
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, None, peak, total, mixed, SIZE_K, False)
    for start in range(whole, stop, KEYS):
        k_tile = load_keys(
            k, k_tiles, batch, group, start, stop, num_keys, GROUPS, SIZE_K, WIDTH_K, KEYS, False
        )  # fmt: skip
        v_tile = load_keys(
            v, v_tiles, batch, group, start, stop, num_keys, GROUPS, SIZE_V, WIDTH_V, KEYS, False
        )  # fmt: skip
        is_visible = ((start + key) * STRIDE + LENGTH - 1)[None, :] <= position[:, None]
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible, peak, total, mixed, SIZE_K)
    finish_rows(out + first_row * SIZE_V, norm + first_row * 2, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, k_tiles, v_tiles, out, norm, grad, grad_q, terms, num_streams, num_queries, num_keys, first_query,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    TILED: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of one tile of rows."""
    batch, group, tile = stream_of(num_streams, GROUPS)
    tile = tl.num_programs(0) // num_streams - 1 - tile  # those that see most come first
    first_row, row, is_row, position, whole, stop = _place(
        batch, group, tile, num_queries, num_keys, first_query, HEADS, GROUPS, LENGTH, STRIDE, ROWS, KEYS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    out_tile = load_rows(out + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    peak, log_total, delta = make_terms(
        terms + first_row * 4, norm + first_row * 2, row, is_row, position, grad_tile, out_tile, ROWS
    )
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    key = tl.arange(0, KEYS)
    for start in range(0, whole, KEYS):
        k_tile = load_keys(
            k, k_tiles, batch, group, start, whole, num_keys, GROUPS, SIZE_K, WIDTH_K, KEYS, TILED
        )  # fmt: skip
        v_tile = load_keys(
            v, v_tiles, batch, group, start, whole, num_keys, GROUPS, SIZE_V, WIDTH_V, KEYS, TILED
        )  # fmt: skip
        sum_q = add_grad_q(
            sum_q, q_tile, k_tile, v_tile, grad_tile, None, peak, log_total, delta, SIZE_K, False
        )  # fmt: skip
    for start in range(whole, stop, KEYS):
        k_tile = load_keys(
            k, k_tiles, batch, group, start, stop, num_keys, GROUPS, SIZE_K, WIDTH_K, KEYS, False
        )  # fmt: skip
        v_tile = load_keys(
            v, v_tiles, batch, group, start, stop, num_keys, GROUPS, SIZE_V, WIDTH_V, KEYS, False
        )  # fmt: skip
        is_visible = ((start + key) * STRIDE + LENGTH - 1)[None, :] <= position[:, None]
        sum_q = add_grad_q(sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K)
    store_rows(grad_q + first_row * SIZE_K, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_kv(
    q, k, v, grad, terms, part_k, part_v, num_streams, num_queries, num_keys, first_query, span,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """What one span of queries adds to the gradients of one tile of compressed keys and values of one stream.

    part_k [spans, B, C, G, Dk] and part_v in float32.
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
    # The first query that sees one of the keys, and the first that sees them all.
    some = tl.maximum(tile * KEYS * STRIDE + LENGTH - 1 - first_query, tl.program_id(1) * span)
    every = tl.maximum((tile * KEYS + KEYS - 1) * STRIDE + LENGTH - 1 - first_query, some)
    stop = tl.minimum(tl.program_id(1) * span + span, num_queries) * HEADS
    whole = some * HEADS + ((every - some) * HEADS + ROWS - 1) // ROWS * ROWS
    for start in range(some * HEADS, tl.minimum(whole, stop), ROWS):
        query, first, row = rows_from(start, HEADS, GROUPS, ROWS)
        is_row = start + tl.arange(0, ROWS) < stop
        q_tile = load_rows(q + first * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad + first * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total, delta, _kept = load_terms(terms + first * 4, row, is_row, ROWS)
        is_visible = (key * STRIDE + LENGTH - 1)[:, None] <= (first_query + query)[None, :]
        sum_k, sum_v, _ = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K
        )
    for start in range(whole, stop, ROWS):
        query, first, row = rows_from(start, HEADS, GROUPS, ROWS)
        is_row = start + tl.arange(0, ROWS) < stop
        q_tile = load_rows(q + first * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad + first * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total, delta, _kept = load_terms(terms + first * 4, row, is_row, ROWS)
        sum_k, sum_v, _ = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, None, peak, log_total, delta, SIZE_K, False
        )
    first_part = tl.program_id(1).to(tl.int64) * num_streams * num_keys + first_key
    store_rows(part_k + first_part * SIZE_K, key_row, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(part_v + first_part * SIZE_V, key_row, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=("num_spans", "num_k", "num_v"))
def _sum_spans(
    part_k, part_v, grad_k, grad_v, num_spans, num_k, num_v, SPANS: tl.constexpr, NUMBERS: tl.constexpr
):  # fmt: skip
    """NUMBERS of the num_k of grad_k, or of the num_v of grad_v: sums of the parts [spans, …]."""
    if tl.program_id(1) == 0:
        _sum_of(part_k, grad_k, num_spans, num_k, SPANS, NUMBERS)
    else:
        _sum_of(part_v, grad_v, num_spans, num_v, SPANS, NUMBERS)


@triton.jit
def _sum_of(parts, grad, num_spans, num, SPANS: tl.constexpr, NUMBERS: tl.constexpr):
    """The same of one of the two."""
    span, number = tl.arange(0, SPANS), tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    is_number = number < num
    at = span.to(tl.int64)[:, None] * num + number[None, :]
    found = tl.load(parts + at, mask=(span < num_spans)[:, None] & is_number[None, :], other=0.0)
    tl.store(grad + number, tl.sum(found, 0).to(grad.dtype.element_ty), mask=is_number)


@triton.jit
def _place(
    batch, group, tile, num_queries, num_keys, first_query, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Where the rows of a tile begin; the rows and their positions; how many keys the oldest and the youngest see.

    Of the oldest's, those in whole tiles.
    """
    query, first, row = rows_from(tile * ROWS, HEADS, GROUPS, ROWS)
    oldest = first_query + tile * ROWS // HEADS
    youngest = first_query + tl.minimum((tile * ROWS + ROWS - 1) // HEADS, num_queries - 1)
    whole = _num_seen(oldest, num_keys, LENGTH, STRIDE) // KEYS * KEYS
    stop = _num_seen(youngest, num_keys, LENGTH, STRIDE)
    first_row = (batch * num_queries * GROUPS + group) * HEADS + first
    return first_row, row, query < num_queries, first_query + query, whole, stop


@triton.jit
def _num_seen(position, num_keys, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """How many of the keys a query at `position` sees."""
    return tl.minimum(tl.maximum(position + 1 - LENGTH + STRIDE, 0) // STRIDE, num_keys)
