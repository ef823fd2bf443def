"""Attention over tiles of keys on Hopper GPUs: the exponentials of a tile are taken while values are multiplied."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from nsa.ops.hopper.tiles import (
    IN_POWERS_OF_TWO,
    KEYS,
    clear_rows,
    end_barriers,
    is_visible,
    keys_of_rows,
    launch,
    load_tile,
    new_barriers,
    places_of_rows,
    tile_of_rows,
    tiles_of,
)
from nsa.ops.kernel_tiles import Sight

# Fastest on an H100: 64 rows, two programs a multiprocessor. With 128 rows, or tiles loaded further ahead, slower.
_WARPS, _STAGES = 4, 2


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight, out: Tensor, norm: Tensor) -> None:
    """Writes output and normaliser [B, T, H, 2] of the queries served; the tensors are contiguous."""
    num_streams, heads = k.shape[0] * k.shape[2], q.shape[2] // k.shape[2]
    grid = (num_streams * -(-sight.num_served * heads // (16 * _WARPS)), 1, 1)
    lengths = num_streams, q.shape[1], sight.num_served, k.shape[1], sight.first_query, sight.window
    sizes = {"HEADS": heads, "GROUPS": k.shape[2], "SIZE": q.shape[3], "LENGTH": sight.length, "STRIDE": sight.stride}
    sizes |= {"KEYS": KEYS, "STAGES": _STAGES, "WARPS": _WARPS}
    launch(_attend, grid, (q, tiles_of(k, KEYS), tiles_of(v, KEYS), out, norm, *lengths), sizes, _WARPS)


@gluon.jit(do_not_specialize=["num_streams", "num_queries", "num_served", "num_keys", "first_query", "window"])
def _attend(
    q, k_tiles, v_tiles, out, norm, num_streams, num_queries, num_served, num_keys, first_query, window,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Output and normaliser of one tile of rows."""
    ROWS: gl.constexpr = 16 * WARPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 16])
    MMA_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, SIZE, 16])
    COALESCED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SIZE, SIZE // 8], [WARPS, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    dtype: gl.constexpr = q.dtype.element_ty
    keys_of = gl.allocate_shared_memory(dtype, [STAGES, KEYS, SIZE], SHARED)
    values_of = gl.allocate_shared_memory(dtype, [STAGES, KEYS, SIZE], SHARED)
    rows_of = gl.allocate_shared_memory(dtype, [ROWS, SIZE], SHARED)
    k_bars, v_bars = new_barriers(STAGES), new_barriers(STAGES)
    fence_async_shared()
    gl.thread_barrier()
    batch, group, start = tile_of_rows(num_streams, ROWS, GROUPS, STRIDE)
    begin, stop, num, edge, whole = keys_of_rows(
        start, num_served, num_keys, first_query, window, HEADS, ROWS, KEYS, LENGTH, STRIDE
    )
    column, first_key = (group * SIZE).to(gl.int32), (batch * num_keys + begin).to(gl.int32)
    for stage in gl.static_range(STAGES):
        row = first_key + stage * KEYS
        load_tile(k_tiles, row, column, k_bars.index(stage), keys_of.index(stage), stage < num)
        load_tile(v_tiles, row, column, v_bars.index(stage), values_of.index(stage), stage < num)
    first_row, row, _query, is_row = places_of_rows(
        batch, group, start, num_queries, num_served, HEADS, GROUPS, ROWS, gl.SliceLayout(1, COALESCED)
    )
    place = gl.expand_dims(row * SIZE, 1) + gl.expand_dims(gl.arange(0, SIZE, gl.SliceLayout(0, COALESCED)), 0)
    rows_of.store(gl.load(q + first_row * SIZE + place, mask=gl.expand_dims(is_row, 1), other=0.0))
    q_tile = rows_of.load(gl.DotOperandLayout(0, MMA, 2))
    _first, row_m, query_m, is_row_m = places_of_rows(
        batch, group, start, num_queries, num_served, HEADS, GROUPS, ROWS, gl.SliceLayout(1, MMA)
    )
    peak, total, mixed = _over_tiles(
        q_tile, k_tiles, v_tiles, keys_of, values_of, k_bars, v_bars, begin, stop, num, edge, whole, first_key, column,
        first_query + query_m, window, MMA, MMA_V, COALESCED, KEYS, ROWS, STAGES, SIZE, LENGTH, STRIDE,
    )  # fmt: skip
    end_barriers(k_bars, STAGES)
    end_barriers(v_bars, STAGES)
    sees_none = total == 0
    total = gl.where(sees_none, 1.0, total)
    inverse = gl.convert_layout(1 / total, gl.SliceLayout(1, MMA_V))
    rows_of.store((mixed * gl.expand_dims(inverse, 1)).to(dtype))
    gl.store(out + first_row * SIZE + place, rows_of.load(COALESCED), mask=gl.expand_dims(is_row, 1))
    gl.store(norm + first_row * 2 + row_m * 2, gl.where(sees_none, 0.0, peak), mask=is_row_m)
    gl.store(norm + first_row * 2 + row_m * 2 + 1, gl.log2(total), mask=is_row_m)


@gluon.jit
def _over_tiles(
    q_tile, k_tiles, v_tiles, keys_of, values_of, k_bars, v_bars, begin, stop, num, edge, whole, first_key, column,
    position, window, MMA: gl.constexpr, MMA_V: gl.constexpr, COALESCED: gl.constexpr, KEYS: gl.constexpr,
    ROWS: gl.constexpr, STAGES: gl.constexpr, SIZE: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr,
):  # fmt: skip
    """Peak, sum and unnormalised output of rows over all of their tiles of keys."""
    PRODUCT: gl.constexpr = gl.DotOperandLayout(0, MMA_V, 2)
    FACTOR: gl.constexpr = IN_POWERS_OF_TWO / SIZE**0.5
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, MMA))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, MMA))
    mixed = gl.zeros([ROWS, SIZE], gl.float32, MMA_V)
    if num > 0:
        mbarrier.wait(k_bars.index(0), 0)
        empty = gl.zeros([ROWS, KEYS], gl.float32, MMA)
        scores = warpgroup_mma(q_tile, keys_of.index(0).permute((1, 0)), empty, use_acc=False)
        gl.thread_barrier()
        row = first_key + STAGES * KEYS
        load_tile(k_tiles, row, column, k_bars.index(0), keys_of.index(0), num > STAGES)
        seen = is_visible(begin, position, window, MMA, KEYS, LENGTH, STRIDE)
        found, _shrink, peak, total = _meet(scores, peak, total, seen, MMA_V, FACTOR, True)
        weights = gl.convert_layout(found.to(values_of.dtype), PRODUCT)
        for part in gl.static_range(3):
            if part == 0:
                first, last = 1, edge
            elif part == 1:
                first, last = edge, whole
            else:
                first, last = whole, num
            weights, mixed, peak, total = _steps(
                first, last, num, begin, k_tiles, v_tiles, first_key, column, keys_of, values_of, k_bars, v_bars,
                q_tile, weights, mixed, peak, total, position, window,
                MMA, MMA_V, PRODUCT, KEYS, ROWS, STAGES, FACTOR, LENGTH, STRIDE, part != 1,
            )  # fmt: skip
        last = num - 1
        mbarrier.wait(v_bars.index(last % STAGES), (last // STAGES) & 1)
        num_left = stop - begin - last * KEYS
        if num_left < KEYS:
            clear_rows(values_of.index(last % STAGES), num_left, COALESCED)
            fence_async_shared()
            gl.thread_barrier()
        mixed = warpgroup_mma(weights, values_of.index(last % STAGES), mixed)
    return peak, total, mixed


@gluon.jit
def _steps(
    first, last, num, begin, k_tiles, v_tiles, first_key, column, keys_of, values_of, k_bars, v_bars, q_tile,
    weights, mixed, peak, total, position, window,
    MMA: gl.constexpr, MMA_V: gl.constexpr, PRODUCT: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, FACTOR: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """The weights of tiles first … last − 1 of num, and the output of the tile before each."""
    for tile in range(first, last):
        before = tile - 1
        stage, stage_before = tile % STAGES, before % STAGES
        mbarrier.wait(k_bars.index(stage), (tile // STAGES) & 1)
        empty = gl.zeros([ROWS, KEYS], gl.float32, MMA)
        scores = warpgroup_mma(q_tile, keys_of.index(stage).permute((1, 0)), empty, use_acc=False, is_async=True)
        mbarrier.wait(v_bars.index(stage_before), (before // STAGES) & 1)
        running = warpgroup_mma(weights, values_of.index(stage_before), mixed, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        start = begin + tile * KEYS
        seen = is_visible(start, position, window, MMA, KEYS, LENGTH, STRIDE) if MASKED else True
        found, shrink, peak, total = _meet(scores, peak, total, seen, MMA_V, FACTOR, MASKED)
        mixed, weights = warpgroup_mma_wait(0, deps=[running, weights])
        mixed = mixed * shrink
        weights = gl.convert_layout(found.to(values_of.dtype), PRODUCT)
        gl.thread_barrier()  # every warp has done with these keys and values
        row = first_key + (tile + STAGES) * KEYS
        load_tile(k_tiles, row, column, k_bars.index(stage), keys_of.index(stage), tile + STAGES < num)
        bar, buffer = v_bars.index(stage_before), values_of.index(stage_before)
        load_tile(v_tiles, row - KEYS, column, bar, buffer, before + STAGES < num)
    return weights, mixed, peak, total


@gluon.jit
def _meet(scores, peak, total, seen, MMA_V: gl.constexpr, FACTOR: gl.constexpr, MASKED: gl.constexpr):
    """Weights of a tile of scores, the shrinking of what came before, and peak and sum with the tile."""
    if MASKED:
        scores = gl.where(seen, scores, float("-inf"))
    highest = gl.maximum(peak, gl.max(scores, 1) * FACTOR)
    origin = gl.where(highest == float("-inf"), 0.0, highest)  # of a row that has seen no key yet
    weights = gl.exp2(scores * FACTOR - gl.expand_dims(origin, 1))
    shrink = gl.exp2(peak - origin)
    shrinking = gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, MMA_V)), 1)
    return weights, shrinking, highest, total * shrink + gl.sum(weights, 1)
