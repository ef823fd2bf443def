"""The compressed branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

Rows of a program's products are the heads of a group at neighbouring queries; they walk the compressed blocks that the
youngest of them sees. Probabilities summed over the heads of a group, by which blocks are chosen, are computed from the
normaliser afterwards, for as many queries at a time as a tile may hold. Nothing is added atomically.
"""

from collections.abc import Callable
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
    weights_of,
)
from nsa.ops.tiles import refuse_second_derivatives, split, tile_budget
from nsa.types import CompressedKey, CompressedValue, Output, Query

_MOST_ROWS, _KEYS, _WARPS = 128, 32, 4  # fastest on an H200
_MOST_SUMMED = 64  # queries, and compressed blocks, of one product of `_sum_heads`

Visit = Callable[[slice, slice, Tensor], None]


def compressed_attention(
    q: Query,
    k_cmp: CompressedKey,
    v_cmp: CompressedValue,
    geometry: Geometry,
    first_query: int,
    visit: Visit | None = None,
) -> Output:
    """Attention of query t = first_query + i over the compressed blocks that end at or before t.

    `visit` as for the fast path in plain torch.
    """
    out: Tensor = _CompressedAttention.apply(q, k_cmp, v_cmp, geometry, first_query, visit)
    return out


class _CompressedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, first_query: int, visit: Visit | None
    ) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        norm = q.new_empty(*q.shape[:3], 2, dtype=torch.float32)
        lengths, sizes = _lengths(q, k, first_query), _sizes(q, k, v, geometry)
        with current(q.device):
            _attend[_by_rows(q, k, sizes)](q, k, v, out, norm, *lengths, **sizes, num_warps=_WARPS)
        if visit is not None:
            _visit_all(visit, q, k, norm, geometry, first_query)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.geometry, ctx.first_query = geometry, first_query
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        q, k, v, out, norm = ctx.saved_tensors
        grad = grad.to(q.dtype).contiguous()
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = q.new_empty(q.shape[:3], dtype=torch.float32)
        lengths, sizes = _lengths(q, k, ctx.first_query), _sizes(q, k, v, ctx.geometry)
        by_keys = (k.shape[0] * k.shape[2] * -(-k.shape[1] // sizes["KEYS"]),)
        with current(q.device):
            _attend_backward_q[_by_rows(q, k, sizes)](
                q, k, v, out, norm, grad, grad_q, delta, *lengths, **sizes, num_warps=_WARPS
            )
            if k.shape[1]:
                _attend_backward_kv[by_keys](
                    q, k, v, norm, grad, delta, grad_k, grad_v, *lengths, **sizes, num_warps=_WARPS
                )
        return grad_q, grad_k, grad_v, None, None, None


def _by_rows(q: Tensor, k: Tensor, sizes: dict[str, int]) -> tuple[int]:
    """A program for each stream (row and group) and each tile of its T·h rows."""
    return (k.shape[0] * k.shape[2] * -(-q.shape[1] * sizes["HEADS"] // sizes["ROWS"]),)


def _lengths(q: Tensor, k: Tensor, first_query: int) -> tuple[int, int, int, int]:
    """Streams, queries and keys of each, and the position of the first query."""
    return k.shape[0] * k.shape[2], q.shape[1], k.shape[1], first_query


def _sizes(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> dict[str, int]:
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
        "ROWS": rows_that_fit(_MOST_ROWS, q.device, width_k, width_v),
        "KEYS": _KEYS,
    }


def _visit_all(visit: Visit, q: Tensor, k: Tensor, norm: Tensor, geometry: Geometry, first_query: int) -> None:
    """Probabilities summed over the heads of a group for tiles of queries, each handed to `visit`."""
    num_rows, num_queries, groups = q.shape[0], q.shape[1], k.shape[2]
    budget = tile_budget(q.device) // groups
    heads, size = q.shape[2] // groups, q.shape[-1]
    side_of_tile = rows_that_fit(_MOST_SUMMED, q.device, side(size))
    for queries in split(num_queries, max(1, budget // max(1, k.shape[1]))):
        num_keys = geometry.num_compressed(first_query + queries.stop)
        if num_keys == 0:
            continue
        num = queries.stop - queries.start
        for rows in split(num_rows, max(1, budget // (num * num_keys))):
            found = q.new_empty(rows.stop - rows.start, num, groups, num_keys, dtype=torch.float32)
            num_streams = found.shape[0] * groups
            grid = num_streams * -(-num // side_of_tile), -(-num_keys // side_of_tile)
            with current(q.device):
                _sum_heads[grid](
                    q[rows, queries], k[rows], norm[rows, queries], found, num_streams, num_queries,
                    k.shape[1], first_query + queries.start, num, num_keys, HEADS=heads, GROUPS=groups, SIZE_K=size,
                    WIDTH_K=side(size), LENGTH=geometry.l, STRIDE=geometry.d, KEYS=side_of_tile, num_warps=_WARPS,
                )  # fmt: skip
            visit(rows, queries, found)


_VARYING = (
    "num_streams",
    "num_queries",
    "num_keys",
    "first_query",
    "num_tile",
    "num_seen",
)  # are no reason to compile again


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, out, norm, num_streams, num_queries, num_keys, first_query,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of one tile of rows."""
    key_row, row, is_row, position, stop = _place(
        num_streams, num_queries, num_keys, first_query, HEADS, GROUPS, LENGTH, STRIDE, ROWS
    )
    q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for start in range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k_tile = load_rows(k, key_row + key * GROUPS, key < stop, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, key_row + key * GROUPS, key < stop, SIZE_V, WIDTH_V)
        is_visible = (key * STRIDE + LENGTH - 1)[None, :] <= position[:, None]
        peak, total, mixed = attend_tile(q_tile, k_tile, v_tile, is_visible, peak, total, mixed, SIZE_K)
    finish_rows(out, norm, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_q(
    q, k, v, out, norm, grad, grad_q, delta, num_streams, num_queries, num_keys, first_query,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and delta, of one tile of rows."""
    key_row, row, is_row, position, stop = _place(
        num_streams, num_queries, num_keys, first_query, HEADS, GROUPS, LENGTH, STRIDE, ROWS
    )
    q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
    row_delta = make_delta(delta, row, is_row, grad_tile, load_rows(out, row, is_row, SIZE_V, WIDTH_V))
    peak, log_total = load_norm(norm, row, is_row)
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    for start in range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k_tile = load_rows(k, key_row + key * GROUPS, key < stop, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, key_row + key * GROUPS, key < stop, SIZE_V, WIDTH_V)
        is_visible = (key * STRIDE + LENGTH - 1)[None, :] <= position[:, None]
        sum_q = add_grad_q(sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, row_delta, SIZE_K)
    store_rows(grad_q, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_kv(
    q, k, v, norm, grad, delta, grad_k, grad_v, num_streams, num_queries, num_keys, first_query,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of compressed keys and values of one stream; the oldest have the most readers."""
    batch, group, tile = _stream(num_streams, GROUPS)
    key = tile * KEYS + tl.arange(0, KEYS)
    is_key = key < num_keys
    key_row = (batch * num_keys + key) * GROUPS + group
    k_tile = load_rows(k, key_row, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v, key_row, is_key, SIZE_V, WIDTH_V)
    sum_k = tl.zeros([KEYS, WIDTH_K], tl.float32)
    sum_v = tl.zeros([KEYS, WIDTH_V], tl.float32)
    first = tl.maximum(tile * KEYS * STRIDE + LENGTH - 1 - first_query, 0)  # query that sees one of them
    for start in range(first * HEADS, num_queries * HEADS, ROWS):
        pair = start + tl.arange(0, ROWS)  # of a query and one of its heads
        is_row = pair < num_queries * HEADS
        query = pair // HEADS
        row = ((batch * num_queries + query) * GROUPS + group) * HEADS + pair % HEADS
        q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total = load_norm(norm, row, is_row)
        row_delta = tl.load(delta + row, mask=is_row, other=0.0)
        is_seen = (key * STRIDE + LENGTH - 1)[:, None] <= (first_query + query)[None, :]
        is_visible = is_key[:, None] & is_row[None, :] & is_seen
        sum_k, sum_v = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, row_delta, SIZE_K
        )
    store_rows(grad_k, key_row, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(grad_v, key_row, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _sum_heads(
    q, k, norm, found, num_streams, num_queries, num_keys, first_query, num_tile, num_seen,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, WIDTH_K: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Probabilities of KEYS queries and KEYS compressed blocks of one stream, summed over the heads of its group.

    q and norm begin at the tile's first query, first_query, and go on for num_queries; found [rows, num_tile, G,
    num_seen] holds the tile's num_tile queries and the num_seen blocks that the youngest of them sees.
    """
    batch, group, tile = _stream(num_streams, GROUPS)
    query = tile * KEYS + tl.arange(0, KEYS)
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    is_query, is_key = query < num_tile, key < num_seen
    k_tile = load_rows(k, (batch * num_keys + key) * GROUPS + group, is_key, SIZE_K, WIDTH_K)
    is_visible = is_key[None, :] & ((key * STRIDE + LENGTH - 1)[None, :] <= (first_query + query)[:, None])
    total = tl.zeros([KEYS, KEYS], tl.float32)
    for head in range(HEADS):
        row = ((batch * num_queries + query) * GROUPS + group) * HEADS + head
        peak, log_total = load_norm(norm, row, is_query)
        q_tile = load_rows(q, row, is_query, SIZE_K, WIDTH_K)
        total += weights_of(q_tile, k_tile, is_visible, peak, log_total, SIZE_K)
    place = ((batch * num_tile + query) * GROUPS + group) * num_seen
    tl.store(found + place[:, None] + key, total, mask=is_query[:, None] & is_key[None, :])


@triton.jit
def _stream(num_streams, GROUPS: tl.constexpr):
    """The program's row and group, and which of their tiles it has."""
    program = tl.program_id(0)
    stream = (program % num_streams).to(tl.int64)
    return stream // GROUPS, stream % GROUPS, program // num_streams


@triton.jit
def _place(
    num_streams, num_queries, num_keys, first_query, HEADS: tl.constexpr, GROUPS: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The program's first key, its rows and their positions, and how many keys the youngest sees."""
    batch, group, tile = _stream(num_streams, GROUPS)
    tile = tl.num_programs(0) // num_streams - 1 - tile  # those that see most come first
    pair = tile * ROWS + tl.arange(0, ROWS)  # of a query and one of its heads
    query = pair // HEADS
    row = ((batch * num_queries + query) * GROUPS + group) * HEADS + pair % HEADS
    youngest = first_query + tl.minimum((tile * ROWS + ROWS - 1) // HEADS, num_queries - 1)
    stop = tl.minimum((youngest + 1 - LENGTH + STRIDE) // STRIDE, num_keys)
    return batch * num_keys * GROUPS + group, row, query < num_queries, first_query + query, tl.maximum(stop, 0)
