"""The gradient of q of the selected branch on Hopper GPUs: see `nsa.ops.hopper.select`."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_wait,
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
from nsa.ops.hopper.tiles import end_barriers, launch, new_barriers, write_terms


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
    """Writes the gradient of q and terms [B, T, H, 4] of the queries that `attend` serves."""
    grid, lengths, sizes = sizes_of(q, k, geometry, num_dense)
    args = q, *tiles_of_blocks(k, v), slots, out, norm, grad, grad_q, terms, *lengths
    launch(_attend_backward_q, grid, args, sizes, WARPS)


@gluon.jit(do_not_specialize=VARYING)
def _attend_backward_q(
    q, k_tiles, v_tiles, k_blocks, v_blocks, slots, out, norm, grad, grad_q, terms, num_queries, num_dense, num_tokens,
    num_tiles, HEADS: gl.constexpr, GROUPS: gl.constexpr, NUM_CHOSEN: gl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of four queries of a group."""
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
    place += first_row * SIZE
    mask = gl.expand_dims(is_row, 1)
    rows_of.store(gl.load(q + place, mask=mask, other=0.0))
    gl.thread_barrier()
    q_tile = rows_of.load(ALL)
    gl.thread_barrier()
    grad_tile, out_tile = gl.load(grad + place, mask=mask, other=0.0), gl.load(out + place, mask=mask, other=0.0)
    rows_of.store(grad_tile)
    delta = gl.sum(grad_tile.to(gl.float32) * out_tile.to(gl.float32), 1)
    position = start + gl.arange(0, ROWS, gl.SliceLayout(1, COALESCED)) // ROWS_EACH
    log_sum = write_terms(terms + first_row * 4, norm + first_row * 2, row, is_row, position, delta)
    gl.thread_barrier()
    grad_tile = rows_of.load(ALL)
    log_sum = gl.convert_layout(log_sum, gl.SliceLayout(1, MMA))
    delta = gl.convert_layout(delta, gl.SliceLayout(1, MMA))
    slots = slots_of_queries(slots, batch, group, own, num_queries, num_dense, GROUPS, NUM_CHOSEN)
    mbarrier.wait(bars.index(0), 0)
    sum_q = _add_all(q_tile, grad_tile, k_of, v_of, log_sum, delta, start, num_tokens)
    sum_q = _add_chosen(
        q_tile, grad_tile, k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, log_sum, delta,
        sum_q, NUM_CHOSEN,
    )  # fmt: skip
    end_barriers(k_bars, 2)
    end_barriers(v_bars, 1)
    end_barriers(bars, 1)
    found = gl.reshape((sum_q * (1 / SIZE**0.5)).to(dtype), [ROWS, SIZE])
    rows_of.store(gl.convert_layout(found, MMA_WIDE))
    gl.thread_barrier()
    gl.store(grad_q + place, rows_of.load(COALESCED), mask=mask)


@gluon.jit
def _add_all(q_tile, grad_tile, k_of, v_of, log_sum, delta, start, num_tokens):
    """The gradient of q, not scaled, of all rows by the blocks that all queries read."""
    dtype: gl.constexpr = k_of.dtype
    keys_of = viewed(k_of, [4, LENGTH, SIZE], SHARED)
    values_of = viewed(v_of, [2, LENGTH, SIZE], SHARED)
    sum_q = gl.zeros([ROWS, SIZE], gl.float32, MMA_WIDE)
    clear_future(keys_of.index(2), start, num_tokens)
    clear_future(keys_of.index(3), start, num_tokens)
    for nth in gl.static_range(3):
        empty = gl.zeros([ROWS, LENGTH], gl.float32, MMA)
        values = (keys_of.index(3) if nth == 2 else values_of.index(nth)).permute((1, 0))
        scores = warpgroup_mma(q_tile, keys_of.index(nth).permute((1, 0)), empty, use_acc=False, is_async=True)
        of_weights = warpgroup_mma(grad_tile, values, empty, use_acc=False, is_async=True)
        scores, of_weights = warpgroup_mma_wait(0, deps=[scores, of_weights])
        weights = gl.exp2(scores * FACTOR - gl.expand_dims(log_sum, 1))
        if nth == 2:
            weights = gl.where(is_read(start), weights, 0.0)
        grad_scores = (weights * (of_weights - gl.expand_dims(delta, 1))).to(dtype)
        sum_q = warpgroup_mma(gl.convert_layout(grad_scores, ALL_WIDE), keys_of.index(nth), sum_q)
    gl.thread_barrier()  # every warp has done with these blocks
    return sum_q


@gluon.jit
def _add_chosen(
    q_tile, grad_tile, k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, log_sum, delta, sum_q,
    NUM_CHOSEN: gl.constexpr,
):  # fmt: skip
    """The same [queries, heads, channels] with the blocks that each query has chosen."""
    STEPS: gl.constexpr = NUM_CHOSEN * (LENGTH // KEYS_AT_ONCE)
    dtype: gl.constexpr = k_of.dtype
    ROW: gl.constexpr = gl.SliceLayout(2, MMA_EACH)
    rows = load_first(k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, NUM_CHOSEN)
    q_each = gl.convert_layout(gl.reshape(q_tile, [QUERIES, ROWS_EACH, SIZE]), EACH)
    grad_each = gl.convert_layout(gl.reshape(grad_tile, [QUERIES, ROWS_EACH, SIZE]), EACH)
    log_sum = gl.expand_dims(gl.convert_layout(gl.reshape(log_sum, [QUERIES, ROWS_EACH]), ROW), 2)
    delta = gl.expand_dims(gl.convert_layout(gl.reshape(delta, [QUERIES, ROWS_EACH]), ROW), 2)
    sum_q = gl.convert_layout(gl.reshape(sum_q, [QUERIES, ROWS_EACH, SIZE]), MMA_EACH)
    keys_of = viewed(k_of, [2, QUERIES, KEYS_AT_ONCE, SIZE], TILES)
    transposed_of = viewed(k_of, [2, QUERIES, SIZE, KEYS_AT_ONCE], TILES_TRANSPOSED)
    values_of = viewed(v_of, [1, QUERIES, SIZE, KEYS_AT_ONCE], TILES_TRANSPOSED)
    for step in range(STEPS):
        stage = step % 2
        rows_after = rows_of_step(slots, step + 2, first_key, NUM_CHOSEN)
        mbarrier.wait(k_bars.index(stage), (step // 2) & 1)
        empty = gl.zeros([QUERIES, ROWS_EACH, KEYS_AT_ONCE], gl.float32, MMA_EACH)
        scores = mma_v2(q_each, transposed_of.index(stage).load(KEYS_EACH), empty)
        mbarrier.wait(v_bars.index(0), step & 1)
        of_weights = mma_v2(grad_each, values_of.index(0).load(KEYS_EACH), empty)
        weights = gl.exp2(scores * FACTOR - log_sum)
        grad_scores = gl.convert_layout((weights * (of_weights - delta)).to(dtype), EACH)
        sum_q = mma_v2(grad_scores, keys_of.index(stage).load(KEYS_EACH), sum_q)
        load_next(k_tiles, v_tiles, rows_after, rows, column, k_of, v_of, k_bars, v_bars, step, STEPS)
        rows = rows_after
    return sum_q
