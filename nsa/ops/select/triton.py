"""The selected branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

The output and the gradient of q: one program for each query and group, whose heads are the rows of its products, walks
the blocks that query chose. The gradients of k and v: the readers of a block, found by sorting the (query, slot) pairs
by block, are cut into parts of equal length, since every query reads block 0; a program for each part adds up its
readers' heads in float32, and the parts of a block are added in order. Nothing is added atomically, so the same inputs
give the same bits.
"""

from typing import Any, NamedTuple

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
    add_grad_kv,
    add_grad_q,
    attend_tile,
    current,
    finish_rows,
    index,
    is_wide,
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
_MOST_ROWS = 32  # (query, head) pairs that meet a block at once in the backward pass
_READERS = 512  # of one part of a block of _MOST_KEYS tokens; as many times more as it is longer
# Fastest on an H200, as are the sizes above; for rows x columns of a query's tile up to 16 x SMALL, and more.
_BY_QUERY = {True: {"num_warps": 1, "num_stages": 2}, False: {"num_warps": 2, "num_stages": 2}}
_BY_BLOCK = {"num_warps": 4, "num_stages": 2}
_SUMMED = 16  # tokens of a block whose parts one program adds up


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
    num_dense = _num_dense(q, k, geometry) if is_chosen else 0
    if num_dense:
        band_kernels.attend(q, k, v, Band(num_dense, k.shape[1]), out, norm)
    if num_dense < q.shape[1]:
        grid, sizes = _by_query(q, k, v, out, slots, geometry, num_dense)
        with current(q.device):
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
    delta = q.new_empty(q.shape[:3], dtype=torch.float32)
    num_dense = _num_dense(q, k, geometry) if is_chosen else 0
    is_whole = num_dense == q.shape[1]
    num_keys = k.shape[1] if is_whole else k.shape[1] - q.shape[1] + num_dense if num_dense else 0
    # What is added to further is in float32.
    dense = [x.new_empty(x.shape[0], num_keys, *x.shape[2:], dtype=None if is_whole else torch.float32) for x in (k, v)]
    if num_dense:
        band = Band(num_dense, k.shape[1])
        band_kernels.attend_backward(grad, q, k, v, band, out, norm, grad_q, delta, *dense)
    if is_whole:
        return grad_q, dense[0], dense[1]
    grid, sizes = _by_query(q, k, v, out, slots, geometry, num_dense)
    with current(q.device):
        _attend_backward_q[grid](
            q, k, v, slots, out, norm, grad, grad_q, delta, q.shape[1], num_dense, k.shape[1],
            **sizes,
        )  # fmt: skip
        for name in ("NUM_SLOTS", "SLOTS", "ROWS", "num_warps", "num_stages"):
            del sizes[name]
        grad_k, grad_v = _gradients_of_blocks(q, k, v, slots, norm, grad, delta, dense, num_dense, sizes)
    return grad_q, grad_k, grad_v


def _num_dense(q: Tensor, k: Tensor, geometry: Geometry) -> int:
    """How many of the queries stand in the first n_sel blocks: they choose every block they see."""
    first_query = k.shape[1] - q.shape[1]
    return min(max(geometry.n_sel * geometry.l_sel - first_query, 0), q.shape[1])


def _by_query(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, slots: Tensor, geometry: Geometry, num_dense: int
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The grid of the kernels that walk a query's blocks, the sizes they are compiled for and how they are launched."""
    # A block longer than the sequence is no longer for it; of few lengths, since each is compiled for.
    block_length = min(geometry.l_sel, side(k.shape[1]))
    num_groups, heads = k.shape[2], q.shape[2] // k.shape[2]
    rows, width_k, width_v = side(min(heads, _MOST_HEADS)), side(q.shape[-1]), side(v.shape[-1])
    grid = q.shape[0] * (q.shape[1] - num_dense), num_groups, -(-heads // rows)
    keys = min(side(block_length), rows_that_fit(_MOST_KEYS, q.device, width_k, width_v, num_stages=2))
    return grid, {
        "HEADS": heads,
        "GROUPS": num_groups,
        "SIZE_K": q.shape[-1],
        "SIZE_V": v.shape[-1],
        "WIDTH_K": width_k,
        "WIDTH_V": width_v,
        "LENGTH": block_length,
        "KEYS": keys,
        "NUM_SLOTS": slots.shape[-1],
        "SLOTS": side(slots.shape[-1]),
        "ROWS": rows,
        "WIDE": is_wide(q, k, v, out),
        **_BY_QUERY[rows * max(width_k, width_v) <= LEAST_SIDE * SMALL],
    }


def _gradients_of_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    norm: Tensor,
    grad: Tensor,
    delta: Tensor,
    dense: list[Tensor],
    num_dense: int,
    sizes: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v by the readers of each block, beside what the first num_dense queries add to them."""
    (num_tokens, num_groups), length, keys = k.shape[1:3], sizes["LENGTH"], sizes["KEYS"]
    num_blocks, tiles_of_keys = -(-num_tokens // length), -(-length // keys)
    parts = _parts_of_blocks(slots, num_dense, num_blocks, _READERS * tiles_of_keys)
    part_k, part_v = (q.new_empty(parts.num, length, x.shape[-1], dtype=torch.float32) for x in (k, v))
    rows = rows_that_fit(_MOST_ROWS, q.device, sizes["WIDTH_K"], sizes["WIDTH_V"], num_stages=2)
    _attend_backward_kv[parts.num, tiles_of_keys](
        q, k, v, norm, grad, delta, *parts[:4], part_k, part_v, q.shape[1], num_tokens, num_blocks,
        k.shape[0] * num_groups, parts.readers,
        **sizes, ROWS=rows, **_BY_BLOCK,
    )  # fmt: skip
    grads = torch.empty_like(k), torch.empty_like(v)
    for part, first, found in zip((part_k, part_v), dense, grads, strict=True):
        _sum_parts[k.shape[0] * num_groups * num_blocks, -(-length // _SUMMED)](
            part, parts.first_part, first, found, num_tokens, first.shape[1], num_blocks,
            GROUPS=num_groups, SIZE=found.shape[-1], WIDTH=side(found.shape[-1]), LENGTH=length, ROWS=_SUMMED,
        )  # fmt: skip
    return grads


class _Parts(NamedTuple):
    """The readers of every block of every stream (row and group), cut into parts of at most `readers`.

    query [pairs]: the readers' queries t, one block's after another's; those of no block of the sequence are last.
    first [blocks + 1]: where each block's begin. first_part [blocks + 1]: the first part of each block.
    block [num]: of each part; `blocks`, their number, for a part that is none.
    """

    query: Tensor
    first: Tensor
    first_part: Tensor
    block: Tensor
    readers: int

    @property
    def num(self) -> int:
        """Parts there may be at most, which shapes alone say."""
        return self.block.shape[0]


def _parts_of_blocks(slots: Tensor, num_dense: int, num_blocks: int, readers: int) -> _Parts:
    """The parts of `slots` [B, T, G, n] among the blocks of a sequence; sorting is stable, so their order is fixed.

    The first num_dense queries are none of the readers.
    """
    slots = slots[:, num_dense:]
    rows, num_queries, groups, num_slots = slots.shape
    stream = torch.arange(rows * groups, device=slots.device).view(rows, 1, groups, 1)
    nowhere = rows * groups * num_blocks
    exists = (slots >= 0) & (slots < num_blocks)
    block = torch.where(exists, slots + stream * num_blocks, nowhere).flatten()
    block, pair = block.to(torch.int32).sort(stable=True)
    first = torch.searchsorted(block, torch.arange(nowhere + 1, dtype=torch.int32, device=slots.device))
    last_part = ((first.diff() + readers - 1) // readers).cumsum(0)
    # A block with c readers has ⌈c / readers⌉ parts, at most (c + readers − 1) / readers.
    num = (pair.numel() + (readers - 1) * min(pair.numel(), nowhere)) // readers
    block_of_part = torch.searchsorted(last_part, torch.arange(num, device=slots.device), right=True)
    query = (num_dense + pair // (groups * num_slots) % num_queries).to(torch.int32)
    return _Parts(query, first, torch.nn.functional.pad(last_part, (1, 0)), block_of_part, readers)


_VARYING = (
    "num_queries",
    "num_dense",
    "num_tokens",
    "num_blocks",
    "num_streams",
    "readers",
)  # vary, and are no reason to compile again


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
    q, k, v, slots, out, norm, grad, grad_q, delta, num_queries, num_dense, num_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of q, and delta, of one query and group."""
    position, slot_row, key_row, first_row, row, is_row = _place(
        num_queries, num_dense, num_tokens, HEADS, GROUPS, ROWS
    )
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    grad_tile = load_rows(grad + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    out_tile = load_rows(out + first_row * SIZE_V, row, is_row, SIZE_V, WIDTH_V)
    row_delta = make_delta(delta + first_row, row, is_row, grad_tile, out_tile)
    peak, log_total = load_norm(norm + first_row * 2, row, is_row)
    slots += slot_row * NUM_SLOTS
    k += key_row * SIZE_K
    v += key_row * SIZE_V
    sum_q = tl.zeros([ROWS, WIDTH_K], tl.float32)
    for step in range(_num_steps(slots, NUM_SLOTS, SLOTS, LENGTH, KEYS)):
        token, is_visible = _keys_of_step(slots, step, position, LENGTH, KEYS, WIDE)
        k_tile = load_rows(k, token * GROUPS, is_visible, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token * GROUPS, is_visible, SIZE_V, WIDTH_V)
        sum_q = add_grad_q(
            sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible[None, :], peak, log_total, row_delta, SIZE_K
        )
    store_rows(grad_q + first_row * SIZE_K, row, is_row, sum_q * scale(SIZE_K), SIZE_K, WIDTH_K)


@triton.jit(do_not_specialize=_VARYING)
def _attend_backward_kv(
    q, k, v, norm, grad, delta, queries, first, first_part, blocks, part_k, part_v, num_queries, num_tokens, num_blocks,
    num_streams, readers,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What one part of a block's readers adds to the gradients of its keys and values, or of KEYS tokens of them.

    queries, first, first_part and blocks as `_Parts` has them; part_k [parts, LENGTH, Dk] and part_v in float32.
    """
    part = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + part)  # of all streams
    if block >= num_streams * num_blocks:
        return
    begin = tl.load(first + block) + (part - tl.load(first_part + block)) * readers
    num_pairs = tl.minimum(tl.load(first + block + 1) - begin, readers).to(tl.int32) * HEADS
    stream = block // num_blocks
    batch, group = stream // GROUPS, (stream % GROUPS).to(tl.int32)
    within = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    key = (block % num_blocks).to(tl.int32) * LENGTH + within
    is_key = (within < LENGTH) & (key < num_tokens)
    first_key = batch * num_tokens * GROUPS + group
    k_tile = load_rows(k + first_key * SIZE_K, index(key, WIDE) * GROUPS, is_key, SIZE_K, WIDTH_K)
    v_tile = load_rows(v + first_key * SIZE_V, index(key, WIDE) * GROUPS, is_key, SIZE_V, WIDTH_V)
    first_row = (batch * num_queries * GROUPS + group) * HEADS
    queries += begin
    q += first_row * SIZE_K
    grad += first_row * SIZE_V
    norm += first_row * 2
    delta += first_row
    sum_k = tl.zeros([KEYS, WIDTH_K], tl.float32)
    sum_v = tl.zeros([KEYS, WIDTH_V], tl.float32)
    for start in range(0, num_pairs, ROWS):
        pair = start + tl.arange(0, ROWS)  # of a reader and one of its heads
        is_row = pair < num_pairs
        query = tl.load(queries + pair // HEADS, mask=is_row, other=0)
        row = index(query, WIDE) * (GROUPS * HEADS) + pair % HEADS
        q_tile = load_rows(q, row, is_row, SIZE_K, WIDTH_K)
        grad_tile = load_rows(grad, row, is_row, SIZE_V, WIDTH_V)
        peak, log_total = load_norm(norm, row, is_row)
        row_delta = tl.load(delta + row, mask=is_row, other=0.0)
        position = num_tokens - num_queries + query
        is_visible = is_key[:, None] & is_row[None, :] & (key[:, None] <= position[None, :])
        sum_k, sum_v = add_grad_kv(
            sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, row_delta, SIZE_K
        )
    is_key = within < LENGTH
    store_rows(part_k + part * LENGTH * SIZE_K, within, is_key, sum_k * scale(SIZE_K), SIZE_K, WIDTH_K)
    store_rows(part_v + part * LENGTH * SIZE_V, within, is_key, sum_v, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=_VARYING)
def _sum_parts(
    parts, first_part, dense, grad, num_tokens, num_dense, num_blocks,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of ROWS tokens of one block: the sum of its parts [parts, LENGTH, SIZE], in their order.

    After dense [B, num_dense, G, SIZE], what queries that see all keys add to the first tokens.
    """
    block = tl.program_id(0).to(tl.int64)
    within = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    stream = block // num_blocks
    token = block % num_blocks * LENGTH + within
    row = (stream // GROUPS * num_dense + token) * GROUPS + stream % GROUPS
    total = load_rows(dense, row, (within < LENGTH) & (token < num_dense), SIZE, WIDTH)
    for part in range(tl.load(first_part + block), tl.load(first_part + block + 1)):
        total += load_rows(parts + part * LENGTH * SIZE, within, within < LENGTH, SIZE, WIDTH)
    row = (stream // GROUPS * num_tokens + token) * GROUPS + stream % GROUPS
    store_rows(grad, row, (within < LENGTH) & (token < num_tokens), total, SIZE, WIDTH)


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
