"""The selected branch on Hopper GPUs: as `nsa.ops.select.near_kernels` has it, with the same bits.

The copy engine brings all keys, in its own time: a program's warps load nothing but which blocks they have chosen. What
its four queries all read, block 0 and the two newest, is multiplied by the heads of all of them at once; of a chosen
block a query's warp takes half at a time.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    warpgroup_mma,
)

from nsa.ops.geometry import Geometry
from nsa.ops.hopper.internal import viewed
from nsa.ops.hopper.select_tiles import (
    ALL,
    ALL_WIDE,
    COALESCED,
    EACH,
    FACTOR,
    KEYS_AT_ONCE,
    KEYS_EACH,
    LENGTH,
    MMA,
    MMA_EACH,
    MMA_WIDE,
    QUERIES,
    ROWS,
    ROWS_EACH,
    SHARED,
    SIZE,
    TILES,
    TILES_TRANSPOSED,
    VARYING,
    WARPS,
    clear_future,
    is_read,
    load_first,
    load_next,
    load_shared_blocks,
    place_of_queries,
    rows_of_heads,
    rows_of_step,
    sizes_of,
    slots_of_queries,
    tiles_of_blocks,
)
from nsa.ops.hopper.tiles import end_barriers, launch, new_barriers


def attend(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, num_dense: int, out: Tensor, norm: Tensor
) -> None:
    """Writes output and normaliser [B, T, H, 2] of all queries but the first num_dense; the tensors are contiguous."""
    grid, lengths, sizes = sizes_of(q, k, geometry, num_dense)
    launch(_attend, grid, (q, *tiles_of_blocks(k, v), slots, out, norm, *lengths), sizes, WARPS)


@gluon.jit(do_not_specialize=VARYING)
def _attend(
    q, k_tiles, v_tiles, k_blocks, v_blocks, slots, out, norm, num_queries, num_dense, num_tokens, num_tiles,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, NUM_CHOSEN: gl.constexpr,
):  # fmt: skip
    """Output and normaliser of four queries of a group."""
    dtype: gl.constexpr = q.dtype.element_ty
    k_of = gl.allocate_shared_memory(dtype, [2 * QUERIES, KEYS_AT_ONCE, SIZE], SHARED)
    v_of = gl.allocate_shared_memory(dtype, [QUERIES, KEYS_AT_ONCE, SIZE], SHARED)
    rows_of = gl.allocate_shared_memory(dtype, [ROWS, SIZE], SHARED)
    k_bars, v_bars, bars = new_barriers(2), new_barriers(1), new_barriers(1)
    fence_async_shared()
    gl.thread_barrier()
    batch, group, start, own = place_of_queries(num_queries, num_dense, num_tokens, num_tiles)
    first_key, column = batch * num_tokens, group * SIZE
    load_shared_blocks(k_blocks, v_blocks, first_key, start, column, bars.index(0), k_of, v_of)
    first_row, row, is_row = rows_of_heads(
        batch, group, own, num_queries, num_dense, HEADS, GROUPS, gl.SliceLayout(1, COALESCED)
    )
    place = gl.expand_dims(row * SIZE, 1) + gl.expand_dims(gl.arange(0, SIZE, gl.SliceLayout(0, COALESCED)), 0)
    rows_of.store(gl.load(q + first_row * SIZE + place, mask=gl.expand_dims(is_row, 1), other=0.0))
    gl.thread_barrier()
    q_tile = rows_of.load(ALL)
    slots = slots_of_queries(slots, batch, group, own, num_queries, num_dense, GROUPS, NUM_CHOSEN)
    mbarrier.wait(bars.index(0), 0)
    peak, total, mixed = _attend_all(q_tile, k_of, v_of, start, num_tokens)
    peak, total, mixed = _attend_chosen(
        q_tile, k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, peak, total, mixed, NUM_CHOSEN
    )
    end_barriers(k_bars, 2)
    end_barriers(v_bars, 1)
    end_barriers(bars, 1)
    found = gl.reshape((mixed * gl.expand_dims(1 / total, 2)).to(dtype), [ROWS, SIZE])
    rows_of.store(gl.convert_layout(found, MMA_WIDE))
    gl.thread_barrier()
    gl.store(out + first_row * SIZE + place, rows_of.load(COALESCED), mask=gl.expand_dims(is_row, 1))
    _first, row, is_row = rows_of_heads(
        batch, group, own, num_queries, num_dense, HEADS, GROUPS, gl.SliceLayout(1, MMA)
    )
    norm += first_row * 2
    gl.store(norm + row * 2, gl.convert_layout(gl.reshape(peak, [ROWS]), gl.SliceLayout(1, MMA)), mask=is_row)
    log_total = gl.convert_layout(gl.reshape(gl.log2(total), [ROWS]), gl.SliceLayout(1, MMA))
    gl.store(norm + row * 2 + 1, log_total, mask=is_row)


@gluon.jit
def _attend_all(q_tile, k_of, v_of, start, num_tokens):
    """Peak, sum and unnormalised output of all rows over the blocks that all queries read."""
    dtype: gl.constexpr = k_of.dtype
    keys_of = viewed(k_of, [4, LENGTH, SIZE], SHARED)
    values_of = viewed(v_of, [2, LENGTH, SIZE], SHARED)
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, MMA))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, MMA))
    mixed = gl.zeros([ROWS, SIZE], gl.float32, MMA_WIDE)
    clear_future(keys_of.index(3), start, num_tokens)
    for nth in gl.static_range(3):
        empty = gl.zeros([ROWS, LENGTH], gl.float32, MMA)
        scores = warpgroup_mma(q_tile, keys_of.index(nth).permute((1, 0)), empty, use_acc=False)
        if nth == 2:
            scores = gl.where(is_read(start), scores, float("-inf"))
        highest = gl.maximum(peak, gl.max(scores, 1) * FACTOR)
        weights = gl.exp2(scores * FACTOR - gl.expand_dims(highest, 1))
        shrink = gl.exp2(peak - highest)
        peak, total = highest, total * shrink + gl.sum(weights, 1)
        mixed = mixed * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, MMA_WIDE)), 1)
        values = keys_of.index(3) if nth == 2 else values_of.index(nth)
        mixed = warpgroup_mma(gl.convert_layout(weights.to(dtype), ALL_WIDE), values, mixed)
    gl.thread_barrier()  # every warp has done with these blocks
    return peak, total, mixed


@gluon.jit
def _attend_chosen(
    q_tile, k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, peak, total, mixed,
    NUM_CHOSEN: gl.constexpr,
):  # fmt: skip
    """The same [queries, heads, …] with the blocks that each query has chosen."""
    STEPS: gl.constexpr = NUM_CHOSEN * (LENGTH // KEYS_AT_ONCE)
    dtype: gl.constexpr = k_of.dtype
    ROW: gl.constexpr = gl.SliceLayout(2, MMA_EACH)
    rows = load_first(k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, NUM_CHOSEN)
    q_each = gl.convert_layout(gl.reshape(q_tile, [QUERIES, ROWS_EACH, SIZE]), EACH)
    peak = gl.convert_layout(gl.reshape(peak, [QUERIES, ROWS_EACH]), ROW)
    total = gl.convert_layout(gl.reshape(total, [QUERIES, ROWS_EACH]), ROW)
    mixed = gl.convert_layout(gl.reshape(mixed, [QUERIES, ROWS_EACH, SIZE]), MMA_EACH)
    keys_of = viewed(k_of, [2, QUERIES, SIZE, KEYS_AT_ONCE], TILES_TRANSPOSED)
    values_of = viewed(v_of, [1, QUERIES, KEYS_AT_ONCE, SIZE], TILES)
    for step in range(STEPS):
        stage = step % 2
        rows_after = rows_of_step(slots, step + 2, first_key, NUM_CHOSEN)
        mbarrier.wait(k_bars.index(stage), (step // 2) & 1)
        empty = gl.zeros([QUERIES, ROWS_EACH, KEYS_AT_ONCE], gl.float32, MMA_EACH)
        scores = mma_v2(q_each, keys_of.index(stage).load(KEYS_EACH), empty)
        highest = gl.maximum(peak, gl.max(scores, 2) * FACTOR)
        weights = gl.exp2(scores * FACTOR - gl.expand_dims(highest, 2))
        shrink = gl.exp2(peak - highest)
        peak, total = highest, total * shrink + gl.sum(weights, 2)
        mbarrier.wait(v_bars.index(0), step & 1)
        rounded = gl.convert_layout(weights.to(dtype), EACH)
        mixed = mma_v2(rounded, values_of.index(0).load(KEYS_EACH), mixed * gl.expand_dims(shrink, 2))
        load_next(k_tiles, v_tiles, rows_after, rows, column, k_of, v_of, k_bars, v_bars, step, STEPS)
        rows = rows_after
    return peak, total, mixed
