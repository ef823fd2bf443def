"""Kernels of the selected branch in which a block of keys stays and its readers come to it, as rows of its products.

So are the gradients of keys and values computed. Where a group has few heads (`is_inverted`), the output and the
gradient of q are too: one query's heads would leave most rows of a product empty and read each block again. What a
block gives a reader is written down in half precision and added up over the reader's slots, in their order. Readers
are cut into parts of equal length, since every query reads block 0; the parts of a block are added in order. Nothing
is added atomically, so the same inputs give the same bits.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.geometry import Geometry
from nsa.ops.kernel_tiles import (
    LEAST_SIDE,
    add_grad_kv,
    attend_tile,
    finish_rows,
    index,
    is_wide,
    load_rows,
    load_terms,
    make_terms,
    products_overlap,
    queries_fit,
    rows_that_fit,
    scale,
    side,
    store_rows,
)
from nsa.ops.select import reader_kernels
from nsa.ops.select.part_kernels import sum_parts
from nsa.ops.select.readers import ALIKE, readers_of_blocks
from nsa.ops.tiles import split

MOST_KEYS = 64  # of one product
_MOST_HEADS = 8  # of a group whose output is computed this way; fastest on an H200, as are the sizes that follow
_MOST_SLOTS = 64  # of a query computed so, since a loop over them is unrolled
_READERS = 512  # of one part of a block of MOST_KEYS tokens at most; as many times more as it is longer
_FEW_READERS, _FEW_QUERIES = 256, 8192  # the same of so few queries, for the gradients of keys and values alone
_ALIKE = tl.constexpr(ALIKE)
_LEAST_OVERLAPPED = 512  # queries that kernels for Hopper GPUs serve: of fewer, what is gained the launch takes
_ROWS, _FORWARD = 64, {"num_warps": 4, "num_stages": 2}  # (query, head) pairs that meet a block at once
_ROWS_BACKWARD, _BACKWARD = 64, {"num_warps": 4, "num_stages": 2}
_ROWS_BACKWARD_ALL, _BACKWARD_ALL = 64, {"num_warps": 4, "num_stages": 2}  # where the gradient of q is computed too
_ROWS_ADDED, _ADDED = 32, {"num_warps": 4, "num_stages": 1}
_MOST_PARTIAL = 1 << 30  # numbers that blocks give to readers, in memory at once


def is_inverted(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> bool:
    """Whether output and gradient of q are computed by block: of small groups, where one tile holds a block."""
    keys = rows_that_fit(MOST_KEYS, q.device, side(q.shape[-1]), side(v.shape[-1]), num_stages=2)
    is_small = q.shape[2] // k.shape[2] <= _MOST_HEADS and geometry.n_sel <= _MOST_SLOTS
    return is_small and side(geometry.l_sel) <= keys


def sizes_of(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> dict[str, Any]:
    """What the kernels are compiled for."""
    # A block longer than the sequence is no longer for it; of few lengths, since each is compiled for.
    block_length = min(geometry.l_sel, side(k.shape[1]))
    width_k, width_v = side(q.shape[-1]), side(v.shape[-1])
    return {
        "HEADS": q.shape[2] // k.shape[2],
        "GROUPS": k.shape[2],
        "SIZE_K": q.shape[-1],
        "SIZE_V": v.shape[-1],
        "WIDTH_K": width_k,
        "WIDTH_V": width_v,
        "LENGTH": block_length,
        "KEYS": min(side(block_length), rows_that_fit(MOST_KEYS, q.device, width_k, width_v, num_stages=2)),
        "WIDE": is_wide(q, k, v, q[..., :1].expand(*q.shape[:-1], v.shape[-1])),
    }


def attend(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, num_dense: int, out: Tensor, norm: Tensor
) -> None:
    """Writes output and normaliser [B, T, H, 2] of all queries but the first num_dense, by block."""
    sizes, (num_tokens, num_groups) = sizes_of(q, k, v, geometry), k.shape[1:3]
    rows = rows_that_fit(_ROWS, q.device, sizes["WIDTH_K"], num_stages=2)
    num_blocks = -(-num_tokens // sizes["LENGTH"])
    for batch, queries in _slices(slots, num_dense, sizes["HEADS"] * v.shape[-1]):
        part = slots[batch, queries]
        readers = readers_of_blocks(part, queries.start, num_blocks, _READERS)
        given = v.new_empty(part.numel(), sizes["HEADS"], v.shape[-1])
        given_norm = norm.new_empty(part.numel(), sizes["HEADS"], 2)
        lengths = q.shape[1], num_tokens, num_blocks, part.shape[0] * num_groups
        _attend[(readers.num,)](
            q[batch], k[batch], v[batch], *readers[:5], given, given_norm, *lengths, **sizes, ROWS=rows, **_FORWARD
        )  # fmt: skip
        _merge[_by_rows(part, sizes)](
            given, given_norm, slots[batch], out[batch], norm[batch], part.shape[0], queries.start, part.shape[1],
            q.shape[1], num_tokens, **_added(sizes, "V", slots), **_ADDED,
        )  # fmt: skip


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    geometry: Geometry,
    num_dense: int,
    terms: Tensor,
    dense: tuple[Tensor, Tensor],
    grad_q: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v, with what spans of the first num_dense queries add to them: float32 [spans, B, n, G, D].

    And of the other queries, written to grad_q, unless that is None.
    """
    sizes, num_tokens = sizes_of(q, k, v, geometry), k.shape[1]
    length, heads = sizes["LENGTH"], sizes["HEADS"]
    num_blocks, tiles_of_keys = -(-num_tokens // length), -(-length // sizes["KEYS"])
    most_rows, launched = (_ROWS_BACKWARD, _BACKWARD) if grad_q is None else (_ROWS_BACKWARD_ALL, _BACKWARD_ALL)
    rows = rows_that_fit(most_rows, q.device, sizes["WIDTH_K"], sizes["WIDTH_V"], num_stages=2)
    found = grads = [torch.empty_like(k), torch.empty_like(v)]
    for batch, queries in _slices(slots, num_dense, 0 if grad_q is None else heads * q.shape[-1]):
        part = slots[batch, queries]
        most = (_FEW_READERS if grad_q is None and part.shape[1] <= _FEW_QUERIES else _READERS) * tiles_of_keys
        if grad_q is None:
            readers = reader_kernels.readers_of_blocks(slots[batch], num_dense, num_blocks, most)
        else:
            readers = readers_of_blocks(part, queries.start, num_blocks, most)
        part_k, part_v = (q.new_empty(readers.num, length, x.shape[-1], dtype=torch.float32) for x in (k, v))
        tensors = q[batch], k[batch], v[batch], grad[batch], terms[batch]
        if grad_q is None and _are_loaded_by_engine(part, grad, q, k, v, sizes):
            from nsa.ops.hopper import select_keys  # what it is written in, not every Triton has

            select_keys.attend_backward(*tensors, readers[1:5], readers.most, ALIKE, part_k, part_v)
        else:
            given = q.new_empty(0 if grad_q is None else part.numel(), heads, q.shape[-1])
            lengths = q.shape[1], num_tokens, num_blocks, part.shape[0] * k.shape[2]
            _attend_backward[readers.num, tiles_of_keys](
                *tensors, *readers[:5], given, part_k, part_v, *lengths,
                **sizes, ROWS=rows, WITH_Q=grad_q is not None, **launched,
            )  # fmt: skip
            if grad_q is not None:
                _add_slots[_by_rows(part, sizes)](
                    given, slots[batch], grad_q[batch], part.shape[0], queries.start, part.shape[1], q.shape[1],
                    num_tokens, **_added(sizes, "K", slots), **_ADDED,
                )  # fmt: skip
        is_first, is_last = queries.start == num_dense, queries.stop == slots.shape[1]  # of the slices of these rows
        so_far = [x[:, batch] for x in dense] if is_first else [x[None] for x in found]
        found = [x[batch] if is_last else part_k.new_empty(x[batch].shape) for x in grads]
        sum_parts((part_k, part_v), readers.first_part, so_far, found, length)
    return grads[0], grads[1]


def _are_loaded_by_engine(slots: Tensor, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, sizes: dict[str, Any]) -> bool:
    """Whether the kernel for Hopper GPUs serves these queries' slots, whose heads fill a quarter of a tile at least."""
    is_served = sizes["LENGTH"] == MOST_KEYS and not sizes["WIDE"] and slots.shape[1] >= _LEAST_OVERLAPPED
    fits = sizes["HEADS"] >= LEAST_SIDE and queries_fit(sizes["HEADS"])
    return is_served and fits and products_overlap(q, k, v, grad)


def write_terms(grad: Tensor, out: Tensor, norm: Tensor, num_dense: int, num_tokens: int, terms: Tensor) -> None:
    """Writes terms [B, T, H, 4] of all queries but the first num_dense; the queries are the last T of num_tokens."""
    num_queries, num_heads = grad.shape[1:3]
    _terms[-(-(num_queries - num_dense) * num_heads // _ROWS_ADDED), grad.shape[0]](
        grad, out, norm, terms, num_queries * num_heads, num_dense * num_heads, num_tokens - num_queries, num_heads,
        SIZE=grad.shape[-1], WIDTH=side(grad.shape[-1]), ROWS=_ROWS_ADDED, **_ADDED,
    )  # fmt: skip


def _slices(slots: Tensor, num_dense: int, per_pair: int) -> Iterator[tuple[slice, slice]]:
    """Rows and queries from num_dense on, as many at once as the memory for what their pairs are given allows.

    How the queries of a row are cut, its length alone says.
    """
    num_rows, num_queries = slots.shape[0], slots.shape[1] - num_dense
    per_query = max(1, per_pair * slots.shape[2] * slots.shape[3])
    most_queries = max(1, _MOST_PARTIAL // per_query)
    at_once = -(-num_queries // -(-num_queries // most_queries))
    for batch in split(num_rows, max(1, _MOST_PARTIAL // (per_query * at_once))):
        for queries in split(num_queries, at_once):
            yield batch, slice(num_dense + queries.start, num_dense + queries.stop)


def _by_rows(part: Tensor, sizes: dict[str, Any]) -> tuple[int]:
    """A program for each tile of (query, head) rows."""
    return (-(-part[..., 0].numel() * sizes["HEADS"] // _ROWS_ADDED),)


def _added(sizes: dict[str, Any], which: str, slots: Tensor) -> dict[str, Any]:
    """What the kernels are compiled for that add up what a row's blocks give it."""
    return {
        **{name: sizes[name] for name in ("HEADS", "GROUPS", "LENGTH")},
        "SIZE": sizes[f"SIZE_{which}"],
        "WIDTH": sizes[f"WIDTH_{which}"],
        "NUM_SLOTS": slots.shape[-1],
        "ROWS": _ROWS_ADDED,
    }


_VARYING = [  # vary, and are no reason to compile again
    *("num_queries", "num_tokens", "num_blocks", "num_streams", "num_batch", "start", "num_tile"),
    *("num_rows", "first_row", "first_query", "num_heads"),
]


@triton.jit(do_not_specialize=_VARYING)
def _attend(
    q, k, v, pairs, queries, first, first_part, blocks, given, given_norm, num_queries, num_tokens, num_blocks,
    num_streams,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What a block gives one part of its readers: output, and peak and sum, of each of their heads.

    given [pairs, HEADS, Dv] and given_norm [pairs, HEADS, 2]; pairs, queries, first, first_part, blocks: see `Readers`.
    """
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + part)  # of all streams
    if block >= num_streams * num_blocks:
        return
    begin, num_rows, batch, group, _, key, is_key = _keys_of_part(
        block, part, first, first_part, num_tokens, num_blocks, HEADS, GROUPS, LENGTH, KEYS
    )
    first_key = batch * num_tokens * GROUPS + group
    k_tile = load_rows(k + first_key * SIZE_K, index(key, WIDE) * GROUPS, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v + first_key * SIZE_V, index(key, WIDE) * GROUPS, is_key, SIZE_V, WIDTH_V)
    q += (batch * num_queries * GROUPS + group) * HEADS * SIZE_K
    queries += begin
    pairs += begin
    for start in range(0, num_rows, ROWS):
        reader = start + tl.arange(0, ROWS)  # one of its heads
        is_row = reader < num_rows
        query = tl.load(queries + reader // HEADS, mask=is_row, other=0)
        row = index(query, WIDE) * (GROUPS * HEADS) + reader % HEADS
        q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
        position = num_tokens - num_queries + query
        is_visible = is_key[None, :] & (key[None, :] <= position[:, None])
        peak, total, mixed = attend_tile(
            q_tile, k_tile, v_tile, is_visible, tl.full([ROWS], float("-inf"), tl.float32),
            tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH_V], tl.float32), SIZE_K,
        )  # fmt: skip
        place = tl.load(pairs + reader // HEADS, mask=is_row, other=0).to(tl.int64) * HEADS + reader % HEADS
        mixed *= (1 / tl.where(total == 0, 1.0, total))[:, None]
        store_rows(given, place, is_row, mixed, SIZE_V, WIDTH_V)
        tl.store(given_norm + place * 2, peak, mask=is_row)
        tl.store(given_norm + place * 2 + 1, total, mask=is_row)


@triton.jit(do_not_specialize=_VARYING)
def _merge(
    given, given_norm, slots, out, norm, num_batch, start, num_tile, num_queries, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, LENGTH: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    NUM_SLOTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Output and normaliser of ROWS (query, head) rows of what their blocks give them."""
    slot_row, row, place, is_row, position = _slots_of_rows(
        num_batch, start, num_tile, num_queries, num_tokens, HEADS, GROUPS, NUM_SLOTS, ROWS
    )
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for slot in tl.static_range(NUM_SLOTS):
        is_given = _is_given(slots + slot_row * NUM_SLOTS + slot, is_row, position, LENGTH)
        at = place + slot * HEADS
        block_peak = tl.load(given_norm + at * 2, mask=is_given, other=float("-inf"))
        block_total = tl.load(given_norm + at * 2 + 1, mask=is_given, other=0.0)
        tile = load_rows(given, at, is_given, SIZE, WIDTH).to(tl.float32)
        highest = tl.maximum(peak, block_peak)
        origin = tl.where(highest == float("-inf"), 0.0, highest)  # of a row that has seen no key yet
        shrink, weight = tl.exp2(peak - origin), tl.exp2(block_peak - origin) * block_total
        mixed = mixed * shrink[:, None] + tile * weight[:, None]
        total = total * shrink + weight
        peak = highest
    finish_rows(out, norm, row, is_row, peak, total, mixed, SIZE, WIDTH)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward(
    q, k, v, grad, terms, pairs, queries, first, first_part, blocks, given, part_k, part_v, num_queries, num_tokens,
    num_blocks, num_streams,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    WITH_Q: tl.constexpr,
):  # fmt: skip
    """What one part of a block's readers adds to the gradients of its keys and values, or of KEYS tokens of them.

    part_k [parts, LENGTH, Dk] and part_v in float32. WITH_Q: and what the block adds to the gradient of each reader's
    q, not scaled, in given [pairs, HEADS, Dk]. pairs, queries, first, first_part, blocks: see `Readers`.
    """
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + part)  # of all streams
    if block >= num_streams * num_blocks:
        return
    begin, num_rows, batch, group, within, key, is_key = _keys_of_part(
        block, part, first, first_part, num_tokens, num_blocks, HEADS, GROUPS, LENGTH, KEYS
    )
    first_key = batch * num_tokens * GROUPS + group
    k_tile = load_rows(k + first_key * SIZE_K, index(key, WIDE) * GROUPS, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v + first_key * SIZE_V, index(key, WIDE) * GROUPS, is_key, SIZE_V, WIDTH_V)
    first_row = (batch * num_queries * GROUPS + group) * HEADS
    queries += begin
    pairs += begin
    q += first_row * SIZE_K
    grad += first_row * SIZE_V
    terms += first_row * 4
    sum_k = tl.zeros([KEYS, WIDTH_K], tl.float32)
    sum_v = tl.zeros([KEYS, WIDTH_V], tl.float32)
    for start in range(0, num_rows, ROWS):
        reader = start + tl.arange(0, ROWS)  # one of its heads
        is_row = reader < num_rows
        query = tl.load(queries + reader // HEADS, mask=is_row, other=0)
        row = index(query, WIDE) * (GROUPS * HEADS) + reader % HEADS
        q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total, delta, position = load_terms(terms, row, is_row, ROWS)
        is_visible = is_key[:, None] & (key[:, None] <= position[None, :])
        sum_k, sum_v, grad_scores = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K
        )
        if WITH_Q:
            place = tl.load(pairs + reader // HEADS, mask=is_row, other=0).to(tl.int64) * HEADS + reader % HEADS
            store_rows(given, place, is_row, tl.dot(tl.trans(grad_scores), k_tile), SIZE_K, WIDTH_K)
    is_key = within < LENGTH
    store_rows(part_k + part * LENGTH * SIZE_K, within, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(part_v + part * LENGTH * SIZE_V, within, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _add_slots(
    given, slots, grad_q, num_batch, start, num_tile, num_queries, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, LENGTH: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    NUM_SLOTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of q of ROWS (query, head) rows, of what their blocks add to it."""
    slot_row, row, place, is_row, position = _slots_of_rows(
        num_batch, start, num_tile, num_queries, num_tokens, HEADS, GROUPS, NUM_SLOTS, ROWS
    )
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for slot in tl.static_range(NUM_SLOTS):
        is_given = _is_given(slots + slot_row * NUM_SLOTS + slot, is_row, position, LENGTH)
        total += load_rows(given, place + slot * HEADS, is_given, SIZE, WIDTH).to(tl.float32)
    store_rows(grad_q, row, is_row, total * scale(SIZE), SIZE, WIDTH)


@triton.jit(do_not_specialize=_VARYING)
def _terms(
    grad, out, norm, terms, num_rows, first_row, first_query, num_heads,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Terms of ROWS of the rows first_row, first_row + 1 … of one batch row, which has num_rows."""
    place = first_row + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    position = first_query + place // num_heads
    row, is_row = tl.program_id(1).to(tl.int64) * num_rows + place, place < num_rows
    grad_tile = load_rows(grad, row, is_row, SIZE, WIDTH)
    make_terms(terms, norm, row, is_row, position, grad_tile, load_rows(out, row, is_row, SIZE, WIDTH), ROWS)


@triton.jit
def _keys_of_part(
    block, part, first, first_part, num_tokens, num_blocks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Where a part's readers begin, their rows; its row and group; KEYS keys in the block and in all, which exist."""
    begin, nth = tl.load(first + block), part - tl.load(first_part + block)
    num, num_parts = tl.load(first + block + 1) - begin, tl.load(first_part + block + 1) - part + nth
    # Parts are of equal length, so that the programs end together, and end where a tile of rows does.
    each = (num + num_parts * _ALIKE - 1) // (num_parts * _ALIKE) * _ALIKE
    num_rows = tl.minimum(num - nth * each, each).to(tl.int32) * HEADS
    stream = block // num_blocks
    within = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    key = (block % num_blocks).to(tl.int32) * LENGTH + within
    is_key = (within < LENGTH) & (key < num_tokens)
    return begin + nth * each, num_rows, stream // GROUPS, (stream % GROUPS).to(tl.int32), within, key, is_key


@triton.jit
def _slots_of_rows(
    num_batch, start, num_tile, num_queries, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, NUM_SLOTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of ROWS (query, head) rows: where their slots lie, the rows, what their first slot gives them, which there are.

    And the queries' positions. The queries are start, start + 1 …, num_tile of each batch row.
    """
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group, head = number // HEADS, number % HEADS  # of all queries
    query = start + group // GROUPS % num_tile
    slot_row = (group // GROUPS // num_tile * num_queries + query) * GROUPS + group % GROUPS
    is_row = group < num_batch * num_tile * GROUPS
    position = num_tokens - num_queries + query
    return slot_row, slot_row * HEADS + head, group * NUM_SLOTS * HEADS + head, is_row, position


@triton.jit
def _is_given(slot, is_row, position, LENGTH: tl.constexpr):
    """Whether the blocks that these slots hold give anything to rows at these positions."""
    block = tl.load(slot, mask=is_row, other=-1)
    return (block >= 0) & (block * LENGTH <= position)
