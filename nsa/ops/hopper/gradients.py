"""Gradients of attention on Hopper GPUs: the products of a tile run while its exponentials are taken.

Nothing is added atomically: a program has its queries or its keys to itself, the latter for one span of queries.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
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
    load_queries,
    load_tile,
    new_barriers,
    places_of_rows,
    tile_of_rows,
    tiles_of,
    tiles_of_queries,
    write_terms,
)
from nsa.ops.kernel_tiles import Sight

ROWS = 64  # that meet a tile of keys at once, for the gradients of keys and values
# Fastest on an H100, two programs a multiprocessor; with 8 warps slower.
_WARPS, _STAGES_K, _STAGES_V, _STAGES_ROWS = 4, 3, 2, 2
_OF_NO_ROW = gl.constexpr(1e30)  # finite, for it is multiplied by zero


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Sight,
    out: Tensor,
    norm: Tensor,
    grad_q: Tensor,
    terms: Tensor,
    parts: tuple[Tensor, Tensor],
    span: int,
) -> None:
    """Writes the gradient of q and terms [B, T, H, 4] of the queries served, and parts [spans, B, n, G, D].

    What each span of so many queries adds to the gradients of the first n keys and values, of k and v themselves where
    there is one. All tensors are contiguous.
    """
    num_streams, heads = k.shape[0] * k.shape[2], q.shape[2] // k.shape[2]
    sizes = {"HEADS": heads, "GROUPS": k.shape[2], "SIZE": q.shape[3], "LENGTH": sight.length, "STRIDE": sight.stride}
    sizes |= {"KEYS": KEYS, "WARPS": _WARPS}
    tiles = tiles_of(k, KEYS), tiles_of(v, KEYS)
    lengths = num_streams, q.shape[1], sight.num_served, k.shape[1], sight.first_query, sight.window
    stages = {"STAGES_K": _STAGES_K, "STAGES_V": _STAGES_V}
    grid = num_streams * -(-sight.num_served * heads // (16 * _WARPS)), 1, 1
    launch(_of_queries, grid, (q, *tiles, out, norm, grad, grad_q, terms, *lengths), sizes | stages, _WARPS)
    of_queries = [tiles_of_queries(x, sight.num_served, heads, ROWS) for x in (q, grad)]
    num_spans, _, num_written = parts[0].shape[:3]
    grid = num_streams * -(-num_written // KEYS), num_spans, 1
    args = *of_queries, *tiles, terms, *parts, num_written, *lengths, span
    launch(_of_keys, grid, args, sizes | {"ROWS": ROWS, "STAGES": _STAGES_ROWS}, _WARPS)


_LENGTHS = ["num_written", "num_streams", "num_queries", "num_served", "num_keys", "first_query", "window", "span"]


@gluon.jit(do_not_specialize=_LENGTHS[1:-1])
def _of_queries(
    q, k_tiles, v_tiles, out, norm, grad, grad_q, terms, num_streams, num_queries, num_served, num_keys, first_query,
    window,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr,
    KEYS: gl.constexpr, STAGES_K: gl.constexpr, STAGES_V: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Gradient of q, and terms, of one tile of rows."""
    ROWS: gl.constexpr = 16 * WARPS
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 16])
    COALESCED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SIZE, SIZE // 8], [WARPS, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    dtype: gl.constexpr = q.dtype.element_ty
    keys_of = gl.allocate_shared_memory(dtype, [STAGES_K, KEYS, SIZE], SHARED)
    values_of = gl.allocate_shared_memory(dtype, [STAGES_V, KEYS, SIZE], SHARED)
    q_of = gl.allocate_shared_memory(dtype, [ROWS, SIZE], SHARED)
    grad_of = gl.allocate_shared_memory(dtype, [ROWS, SIZE], SHARED)
    k_bars, v_bars = new_barriers(STAGES_K), new_barriers(STAGES_V)
    fence_async_shared()
    gl.thread_barrier()
    batch, group, start = tile_of_rows(num_streams, ROWS, GROUPS, STRIDE)
    begin, stop, num, edge, whole = keys_of_rows(
        start, num_served, num_keys, first_query, window, HEADS, ROWS, KEYS, LENGTH, STRIDE
    )
    column, first_key = (group * SIZE).to(gl.int32), (batch * num_keys + begin).to(gl.int32)
    for stage in gl.static_range(STAGES_K):
        load_tile(k_tiles, first_key + stage * KEYS, column, k_bars.index(stage), keys_of.index(stage), stage < num)
    for stage in gl.static_range(STAGES_V):
        load_tile(v_tiles, first_key + stage * KEYS, column, v_bars.index(stage), values_of.index(stage), stage < num)
    first_row, row, query, is_row = places_of_rows(
        batch, group, start, num_queries, num_served, HEADS, GROUPS, ROWS, gl.SliceLayout(1, COALESCED)
    )
    place = gl.expand_dims(row * SIZE, 1) + gl.expand_dims(gl.arange(0, SIZE, gl.SliceLayout(0, COALESCED)), 0)
    mask = gl.expand_dims(is_row, 1)
    q_of.store(gl.load(q + first_row * SIZE + place, mask=mask, other=0.0))
    grad_tile = gl.load(grad + first_row * SIZE + place, mask=mask, other=0.0)
    out_tile = gl.load(out + first_row * SIZE + place, mask=mask, other=0.0)
    grad_of.store(grad_tile)
    fence_async_shared()
    delta = gl.sum(grad_tile.to(gl.float32) * out_tile.to(gl.float32), 1)
    log_sum = write_terms(terms + first_row * 4, norm + first_row * 2, row, is_row, first_query + query, delta)
    _first, _row, query_m, _is_row = places_of_rows(
        batch, group, start, num_queries, num_served, HEADS, GROUPS, ROWS, gl.SliceLayout(1, MMA)
    )
    gl.thread_barrier()
    sum_q = _over_tiles(
        q_of, grad_of, k_tiles, v_tiles, keys_of, values_of, k_bars, v_bars, begin, stop, num, edge, whole, first_key,
        column, gl.convert_layout(log_sum, gl.SliceLayout(1, MMA)), gl.convert_layout(delta, gl.SliceLayout(1, MMA)),
        first_query + query_m, window, MMA, COALESCED, KEYS, ROWS, STAGES_K, STAGES_V, SIZE, WARPS, LENGTH, STRIDE,
    )  # fmt: skip
    end_barriers(k_bars, STAGES_K)
    end_barriers(v_bars, STAGES_V)
    q_of.store((sum_q * (1 / SIZE**0.5)).to(dtype))
    gl.store(grad_q + first_row * SIZE + place, q_of.load(COALESCED), mask=mask)


@gluon.jit
def _over_tiles(
    q_of, grad_of, k_tiles, v_tiles, keys_of, values_of, k_bars, v_bars, begin, stop, num, edge, whole, first_key,
    column, log_sum, delta, position, window, MMA: gl.constexpr, COALESCED: gl.constexpr, KEYS: gl.constexpr,
    ROWS: gl.constexpr, STAGES_K: gl.constexpr, STAGES_V: gl.constexpr, SIZE: gl.constexpr, WARPS: gl.constexpr,
    LENGTH: gl.constexpr, STRIDE: gl.constexpr,
):  # fmt: skip
    """The gradient of q, not scaled, of rows over all of their tiles of keys."""
    MMA_Q: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, SIZE, 16])
    PRODUCT: gl.constexpr = gl.DotOperandLayout(0, MMA_Q, 2)
    FACTOR: gl.constexpr = IN_POWERS_OF_TWO / SIZE**0.5
    sum_q = gl.zeros([ROWS, SIZE], gl.float32, MMA_Q)
    grad_scores = gl.zeros([ROWS, KEYS], keys_of.dtype, PRODUCT)
    if num > 0:
        for part in gl.static_range(4):
            if part == 0:
                first, last = 0, 1
            elif part == 1:
                first, last = 1, edge
            elif part == 2:
                first, last = edge, whole
            else:
                first, last = whole, num
            grad_scores, sum_q = _steps_of_queries(
                first, last, num, begin, k_tiles, v_tiles, first_key, column, keys_of, values_of, k_bars, v_bars, q_of,
                grad_of, grad_scores, sum_q, log_sum, delta, position, window,
                MMA, PRODUCT, KEYS, ROWS, STAGES_K, STAGES_V, FACTOR, LENGTH, STRIDE, part != 2, part == 0,
            )  # fmt: skip
        last = num - 1
        num_left = stop - begin - last * KEYS
        if num_left < KEYS:
            clear_rows(keys_of.index(last % STAGES_K), num_left, COALESCED)
            fence_async_shared()
            gl.thread_barrier()
        sum_q = warpgroup_mma(grad_scores, keys_of.index(last % STAGES_K), sum_q)
    gl.thread_barrier()
    return sum_q


@gluon.jit
def _steps_of_queries(
    first, last, num, begin, k_tiles, v_tiles, first_key, column, keys_of, values_of, k_bars, v_bars, q_of, grad_of,
    grad_scores, sum_q, log_sum, delta, position, window,
    MMA: gl.constexpr, PRODUCT: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr, STAGES_K: gl.constexpr,
    STAGES_V: gl.constexpr, FACTOR: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr, MASKED: gl.constexpr,
    IS_FIRST: gl.constexpr,
):  # fmt: skip
    """The gradient of the scores of tiles first … last − 1 of num, and that of q by the tile before each."""
    for tile in range(first, last):
        before = tile - 1
        stage_k, stage_v, stage_before = tile % STAGES_K, tile % STAGES_V, before % STAGES_K
        empty = gl.zeros([ROWS, KEYS], gl.float32, MMA)
        mbarrier.wait(k_bars.index(stage_k), (tile // STAGES_K) & 1)
        scores = warpgroup_mma(q_of, keys_of.index(stage_k).permute((1, 0)), empty, use_acc=False, is_async=True)
        mbarrier.wait(v_bars.index(stage_v), (tile // STAGES_V) & 1)
        values = values_of.index(stage_v).permute((1, 0))
        of_weights = warpgroup_mma(grad_of, values, empty, use_acc=False, is_async=True)
        if IS_FIRST:
            scores = warpgroup_mma_wait(1, deps=[scores])
        else:
            running = warpgroup_mma(grad_scores, keys_of.index(stage_before), sum_q, is_async=True)
            scores = warpgroup_mma_wait(2, deps=[scores])
        weights = gl.exp2(scores * FACTOR - gl.expand_dims(log_sum, 1))
        of_weights = warpgroup_mma_wait(0 if IS_FIRST else 1, deps=[of_weights])
        found = weights * (of_weights - gl.expand_dims(delta, 1))
        if MASKED:
            seen = is_visible(begin + tile * KEYS, position, window, MMA, KEYS, LENGTH, STRIDE)
            found = gl.where(seen, found, 0.0)
        if not IS_FIRST:
            sum_q, grad_scores = warpgroup_mma_wait(0, deps=[running, grad_scores])
        grad_scores = gl.convert_layout(found.to(keys_of.dtype), PRODUCT)
        gl.thread_barrier()  # every warp has done with these values, and the keys before
        row = first_key + (tile + STAGES_V) * KEYS
        load_tile(v_tiles, row, column, v_bars.index(stage_v), values_of.index(stage_v), tile + STAGES_V < num)
        if not IS_FIRST:
            row = first_key + (before + STAGES_K) * KEYS
            bar, buffer = k_bars.index(stage_before), keys_of.index(stage_before)
            load_tile(k_tiles, row, column, bar, buffer, before + STAGES_K < num)
    return grad_scores, sum_q


@gluon.jit(do_not_specialize=_LENGTHS)
def _of_keys(
    q_tiles, grad_tiles, k_tiles, v_tiles, terms, grad_k, grad_v, num_written, num_streams, num_queries, num_served,
    num_keys, first_query, window, span,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr,
    KEYS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """What one span of queries adds to the gradients of one tile of keys and values of one stream."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ROWS, 16])
    MMA_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, SIZE, 16])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    SHARED_ROWS: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    dtype: gl.constexpr = k_tiles.dtype
    k_of = gl.allocate_shared_memory(dtype, [KEYS, SIZE], SHARED)
    v_of = gl.allocate_shared_memory(dtype, [KEYS, SIZE], SHARED)
    rows_of = gl.allocate_shared_memory(dtype, [STAGES, 1, ROWS // HEADS, HEADS, SIZE], SHARED_ROWS)
    grads_of = gl.allocate_shared_memory(dtype, [STAGES, 1, ROWS // HEADS, HEADS, SIZE], SHARED_ROWS)
    sums_of = gl.allocate_shared_memory(gl.float32, [2, ROWS], PLAIN)
    deltas_of = gl.allocate_shared_memory(gl.float32, [2, ROWS], PLAIN)
    kv_bars, q_bars, grad_bars = new_barriers(1), new_barriers(STAGES), new_barriers(STAGES)
    fence_async_shared()
    gl.thread_barrier()
    stream = gl.program_id(0) % num_streams
    batch, group, first = stream // GROUPS, stream % GROUPS, gl.program_id(0) // num_streams * KEYS
    begin, stop, num, edge, whole = _rows_of_keys(
        first, num_served, first_query, window, span, HEADS, ROWS, KEYS, LENGTH, STRIDE
    )
    mbarrier.expect(kv_bars.index(0), KEYS * SIZE * 4, pred=num > 0)
    of_keys = [batch * num_keys + first, group * SIZE]
    tma.async_copy_global_to_shared(k_tiles, of_keys, kv_bars.index(0), k_of, pred=num > 0)
    tma.async_copy_global_to_shared(v_tiles, of_keys, kv_bars.index(0), v_of, pred=num > 0)
    for stage in gl.static_range(STAGES):
        query = begin // HEADS + stage * (ROWS // HEADS)
        bar, head = q_bars.index(stage), group * HEADS
        load_queries(q_tiles, batch, query, head, bar, rows_of.index(stage), stage < num)
        load_queries(grad_tiles, batch, query, head, grad_bars.index(stage), grads_of.index(stage), stage < num)
    terms += (batch.to(gl.int64) * num_queries * GROUPS + group) * HEADS * 4
    sum_k, sum_v = gl.zeros([KEYS, SIZE], gl.float32, MMA_K), gl.zeros([KEYS, SIZE], gl.float32, MMA_K)
    if num > 0:
        sum_k, sum_v = _over_rows(
            q_tiles, grad_tiles, batch, group, first, first_query, terms, rows_of, grads_of, q_bars, grad_bars,
            sums_of, deltas_of, k_of, v_of, kv_bars, sum_k, sum_v, window, begin, stop, num, edge, whole,
            HEADS, GROUPS, SIZE, MMA, MMA_K, WARPS, KEYS, ROWS, STAGES, LENGTH, STRIDE,
        )  # fmt: skip
    end_barriers(kv_bars, 1)
    end_barriers(q_bars, STAGES)
    end_barriers(grad_bars, STAGES)
    key = gl.arange(0, KEYS, gl.SliceLayout(1, MMA_K))
    channel = gl.arange(0, SIZE, gl.SliceLayout(0, MMA_K))
    first_part = (gl.program_id(1).to(gl.int64) * (num_streams // GROUPS) + batch) * num_written + first
    place = (first_part * GROUPS + group) * SIZE + gl.expand_dims(key * (GROUPS * SIZE), 1) + gl.expand_dims(channel, 0)
    is_key = gl.expand_dims(first + key < num_written, 1)
    written: gl.constexpr = grad_k.dtype.element_ty
    gl.store(grad_k + place, (sum_k * (1 / SIZE**0.5)).to(written), mask=is_key)
    gl.store(grad_v + place, sum_v.to(written), mask=is_key)


@gluon.jit
def _rows_of_keys(
    first, num_served, first_query, window, span, HEADS: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    LENGTH: gl.constexpr, STRIDE: gl.constexpr,
):  # fmt: skip
    """Of the pairs of a span that see one of KEYS keys from `first` on: the first, the end, how many tiles of them.

    And between which of these tiles every pair sees every key.
    """
    begin, stop = gl.program_id(1) * span, gl.minimum(gl.program_id(1) * span + span, num_served)
    if STRIDE == 0:
        begin = gl.maximum(first - first_query, begin)
        stop = gl.minimum(first + KEYS - 1 + window - first_query, stop)
        first_whole = first + KEYS - 1 - first_query
        last_whole = first + window - first_query  # the first query behind those that see all
    else:
        begin = gl.maximum(first * STRIDE + LENGTH - 1 - first_query, begin)
        first_whole = (first + KEYS - 1) * STRIDE + LENGTH - 1 - first_query
        last_whole = stop
    num = (gl.maximum(stop - begin, 0) * HEADS + ROWS - 1) // ROWS
    edge = gl.minimum((gl.maximum(first_whole - begin, 0) * HEADS + ROWS - 1) // ROWS, num)
    whole = gl.minimum(gl.maximum(gl.maximum(last_whole - begin, 0) * HEADS // ROWS, edge), num)
    if STRIDE > 0:
        whole = num
    return begin * HEADS, stop * HEADS, num, edge, whole


@gluon.jit
def _over_rows(
    q_tiles, grad_tiles, batch, group, first, first_query, terms, rows_of, grads_of, q_bars, grad_bars, sums_of,
    deltas_of, k_of, v_of, kv_bars, sum_k, sum_v, window, begin, stop, num, edge, whole,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, MMA: gl.constexpr, MMA_K: gl.constexpr,
    WARPS: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, LENGTH: gl.constexpr,
    STRIDE: gl.constexpr,
):  # fmt: skip
    """Gradients of keys, not scaled, and values over all tiles of rows."""
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    PRODUCT: gl.constexpr = gl.DotOperandLayout(0, MMA_K, 2)
    FACTOR: gl.constexpr = IN_POWERS_OF_TWO / SIZE**0.5
    log_sum, delta = _terms_of(terms, begin + gl.arange(0, ROWS, FLAT), stop, HEADS, GROUPS)
    sums_of.index(0).store(log_sum)
    deltas_of.index(0).store(delta)
    gl.thread_barrier()
    mbarrier.wait(kv_bars.index(0), 0)
    key = first + gl.arange(0, KEYS, gl.SliceLayout(1, MMA))
    for part in gl.static_range(3):
        if part == 0:
            start, end = 0, edge
        elif part == 1:
            start, end = edge, whole
        else:
            start, end = whole, num
        if STRIDE == 0 or part < 2:
            sum_k, sum_v = _steps_of_keys(
                start, end, num, begin, stop, q_tiles, grad_tiles, batch, group * HEADS, first_query, terms, rows_of,
                grads_of, q_bars, grad_bars, sums_of, deltas_of, k_of, v_of, key, sum_k, sum_v, window,
                HEADS, GROUPS, SIZE, MMA, PRODUCT, FLAT, KEYS, ROWS, STAGES, FACTOR, LENGTH, STRIDE, part != 1,
            )  # fmt: skip
    return sum_k, sum_v


@gluon.jit
def _terms_of(terms, pair, stop, HEADS: gl.constexpr, GROUPS: gl.constexpr):
    """Peak and log2 of the sum, added up, and delta; of a pair that is none so that its probabilities are zero."""
    at = terms + (pair // HEADS * (GROUPS * HEADS) + pair % HEADS).to(gl.int64) * 4
    is_row = pair < stop
    log_sum = gl.load(at, mask=is_row, other=_OF_NO_ROW) + gl.load(at + 1, mask=is_row, other=0.0)
    return log_sum, gl.load(at + 2, mask=is_row, other=0.0)


@gluon.jit
def _steps_of_keys(
    first, last, num, begin, stop, q_tiles, grad_tiles, batch, head, first_query, terms, rows_of, grads_of, q_bars,
    grad_bars, sums_of, deltas_of, k_of, v_of, key, sum_k, sum_v, window,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, MMA: gl.constexpr, PRODUCT: gl.constexpr,
    FLAT: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, FACTOR: gl.constexpr,
    LENGTH: gl.constexpr, STRIDE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Gradients with the parts of the tiles of rows first … last − 1 of num."""
    COLUMN: gl.constexpr = gl.SliceLayout(0, MMA)
    for tile in range(first, last):
        stage, phase = tile % STAGES, (tile // STAGES) & 1
        q_tile = rows_of.index(stage).reshape((ROWS, SIZE))
        grad_tile = grads_of.index(stage).reshape((ROWS, SIZE))
        empty = gl.zeros([KEYS, ROWS], gl.float32, MMA)
        mbarrier.wait(q_bars.index(stage), phase)
        scores = warpgroup_mma(k_of, q_tile.permute((1, 0)), empty, use_acc=False, is_async=True)
        mbarrier.wait(grad_bars.index(stage), phase)
        of_weights = warpgroup_mma(v_of, grad_tile.permute((1, 0)), empty, use_acc=False, is_async=True)
        log_sum, delta = sums_of.index(tile % 2).load(COLUMN), deltas_of.index(tile % 2).load(COLUMN)
        pair = begin + (tile + 1) * ROWS + gl.arange(0, ROWS, FLAT)
        log_sum_after, delta_after = _terms_of(terms, pair, stop, HEADS, GROUPS)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights = gl.exp2(scores * FACTOR - gl.expand_dims(log_sum, 0))
        if MASKED:
            position = first_query + (begin + tile * ROWS + gl.arange(0, ROWS, COLUMN)) // HEADS
            at, own = gl.expand_dims(position, 0), gl.expand_dims(key, 1)
            seen = (own <= at) & (own > at - window) if STRIDE == 0 else own * STRIDE + LENGTH - 1 <= at
            weights = gl.where(seen, weights, 0.0)
        rounded = gl.convert_layout(weights.to(k_of.dtype), PRODUCT)
        running_v = warpgroup_mma(rounded, grad_tile, sum_v, is_async=True)
        of_weights = warpgroup_mma_wait(1, deps=[of_weights])
        of_scores = (weights * (of_weights - gl.expand_dims(delta, 0))).to(k_of.dtype)
        of_scores = gl.convert_layout(of_scores, PRODUCT)
        running_k = warpgroup_mma(of_scores, q_tile, sum_k, is_async=True)
        sums_of.index((tile + 1) % 2).store(log_sum_after)
        deltas_of.index((tile + 1) % 2).store(delta_after)
        sum_v, sum_k, _rounded, _of_scores = warpgroup_mma_wait(0, deps=[running_v, running_k, rounded, of_scores])
        gl.thread_barrier()  # every warp has done with these rows
        query = (begin + (tile + STAGES) * ROWS) // HEADS
        bar, is_tile = q_bars.index(stage), tile + STAGES < num
        load_queries(q_tiles, batch, query, head, bar, rows_of.index(stage), is_tile)
        load_queries(grad_tiles, batch, query, head, grad_bars.index(stage), grads_of.index(stage), is_tile)
    return sum_k, sum_v
