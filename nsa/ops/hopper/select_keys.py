"""The gradients of keys and values of the selected branch on Hopper GPUs: as `nsa.ops.select.block_kernels` has them.

With the same bits. The copy engine brings a block's readers, all heads of a query at once, and products run while the
exponentials of others are taken. For groups of 16, 32 and 64 heads.
"""

from collections.abc import Sequence

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

from nsa.ops.hopper.internal import viewed
from nsa.ops.hopper.tiles import (
    IN_POWERS_OF_TWO,
    Tiles,
    copy_tile,
    end_barriers,
    launch,
    new_barriers,
    tiles_of,
)

_LENGTH, _SIZE, _ROWS = gl.constexpr(64), gl.constexpr(128), gl.constexpr(64)  # of a block, channels, of a tile
_HALF, _AT_ONCE = gl.constexpr(64), gl.constexpr(8)  # channels and heads that lie together in shared memory
_STAGES, _WARPS = gl.constexpr(2), 4
_OF_NO_ROW = gl.constexpr(1e30)  # finite, for it is multiplied by zero
_FACTOR, _SCALE = gl.constexpr(IN_POWERS_OF_TWO / 128**0.5), gl.constexpr(1 / 128**0.5)
_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_PIECES = gl.constexpr(gl.NVMMASharedLayout(128, 16, 4))


def _bases() -> list[list[int]]:
    """Which element [row, channel] of a tile of rows lies at each power of two.

    Eight rows of 128 bytes, where in these 16 bytes lie the last three bits of the row say; then their other half.
    """
    in_a_row = [[0, 1 << bit] for bit in range(6)]
    return [*in_a_row, [1, 8], [2, 16], [4, 32], [0, 64], [8, 0], [16, 0], [32, 0]]


_TILE = gl.constexpr(gl.SharedLinearLayout(_bases(), [], 1024))
_PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
_FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # keys by rows
_MMA_WIDE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))  # keys by channels
_PRODUCT = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2))
_COLUMN = gl.constexpr(gl.SliceLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])))
_VARYING = ["num_queries", "num_tokens", "num_blocks", "num_streams"]  # and are no reason to compile again


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    terms: Tensor,
    readers: Sequence[Tensor],
    most: int,
    alike: int,
    part_k: Tensor,
    part_v: Tensor,
) -> None:
    """Writes part_k [parts, 64, Dk] and part_v of the parts that there are; the tensors are contiguous.

    readers: query, first, first_part and block, as `nsa.ops.select.readers` has them. A part is of at most `most`,
    a multiple of `alike` but for the last of a block.
    """
    rows, num_queries, num_heads, _ = q.shape
    num_tokens, groups = k.shape[1:3]
    heads, length = num_heads // groups, _LENGTH.value
    of_readers = (_heads_of_queries(x, heads) for x in (q, grad))
    lengths = num_queries, num_tokens, -(-num_tokens // length), rows * groups
    args = *of_readers, tiles_of(k, length), tiles_of(v, length), terms, *readers, part_k, part_v, *lengths
    sizes = {"HEADS": heads, "GROUPS": groups, "MOST": most, "ALIKE": alike}
    launch(_of_part, (len(part_k), 1, 1), args, sizes, _WARPS)


def _heads_of_queries(x: Tensor, heads: int) -> Tiles:
    """`x` [B, T, H, D] as tiles of one query's heads in one group: eight heads at a time, in halves of a head."""
    size, half, at_once = x.shape[-1], _HALF.value, _AT_ONCE.value
    shape = [x.numel() // size // at_once, size // half, at_once, half]
    return Tiles(x, shape, [at_once * size, half, size, 1], [heads // at_once, *shape[1:]])


@gluon.jit(do_not_specialize=_VARYING)
def _of_part(
    q_tiles, grad_tiles, k_tiles, v_tiles, terms, queries, firsts, first_parts, blocks, part_k, part_v, num_queries,
    num_tokens, num_blocks, num_streams,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, MOST: gl.constexpr, ALIKE: gl.constexpr,
):  # fmt: skip
    """What one part of a block's readers, at most MOST, adds to the gradients of its keys and values."""
    dtype: gl.constexpr = k_tiles.dtype
    k_of = gl.allocate_shared_memory(dtype, [_LENGTH, _SIZE], _SHARED)
    v_of = gl.allocate_shared_memory(dtype, [_LENGTH, _SIZE], _SHARED)
    NUM: gl.constexpr = _STAGES * (_ROWS // HEADS)
    rows_of = gl.allocate_shared_memory(dtype, [NUM, HEADS // _AT_ONCE, _SIZE // _HALF, _AT_ONCE, _HALF], _PIECES)
    grads_of = gl.allocate_shared_memory(dtype, [NUM, HEADS // _AT_ONCE, _SIZE // _HALF, _AT_ONCE, _HALF], _PIECES)
    sums_of = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _PLAIN)
    deltas_of = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _PLAIN)
    positions_of = gl.allocate_shared_memory(gl.int32, [2, _ROWS], _PLAIN)
    kv_bars, q_bars, grad_bars = new_barriers(1), new_barriers(_STAGES), new_barriers(_STAGES)
    fence_async_shared()
    gl.thread_barrier()
    block, begin, num_readers = _part(firsts, first_parts, blocks, num_blocks, num_streams, ALIKE)
    stream, start = block // num_blocks, (block % num_blocks).to(gl.int32) * _LENGTH
    batch, group = stream // GROUPS, (stream % GROUPS).to(gl.int32)
    queries += begin
    num = (num_readers * HEADS + _ROWS - 1) // _ROWS
    mbarrier.expect(kv_bars.index(0), _LENGTH * _SIZE * 4, pred=num > 0)
    first_key = (batch * num_tokens).to(gl.int32) + start
    copy_tile(k_tiles, first_key, group * _SIZE, kv_bars.index(0), k_of, num > 0)
    copy_tile(v_tiles, first_key, group * _SIZE, kv_bars.index(0), v_of, num > 0)
    first_row = ((batch * num_queries * GROUPS + group) * HEADS).to(gl.int32)
    sum_k = gl.zeros([_LENGTH, _SIZE], gl.float32, _MMA_WIDE)
    sum_v = gl.zeros([_LENGTH, _SIZE], gl.float32, _MMA_WIDE)
    if num > 0:
        rows = _rows_of_tile(queries, 0, num_readers, first_row, HEADS, GROUPS)
        _load(q_tiles, rows, q_bars.index(0), rows_of, 0, num > 0, HEADS)
        _load(grad_tiles, rows, grad_bars.index(0), grads_of, 0, num > 0, HEADS)
        terms += first_row.to(gl.int64) * 4
        first_query = num_tokens - num_queries
        sum_k, sum_v = _over_readers(
            q_tiles, grad_tiles, queries, num_readers, first_row, first_query, terms, rows_of, grads_of, q_bars,
            grad_bars, sums_of, deltas_of, positions_of, k_of, v_of, kv_bars, start, num, sum_k, sum_v,
            HEADS, GROUPS, MOST,
        )  # fmt: skip
    end_barriers(kv_bars, 1)
    end_barriers(q_bars, _STAGES)
    end_barriers(grad_bars, _STAGES)
    key = gl.arange(0, _LENGTH, gl.SliceLayout(1, _MMA_WIDE))
    channel = gl.arange(0, _SIZE, gl.SliceLayout(0, _MMA_WIDE))
    place = gl.program_id(0).to(gl.int64) * (_LENGTH * _SIZE)
    place += gl.expand_dims(key * _SIZE, 1) + gl.expand_dims(channel, 0)
    is_part = gl.expand_dims(key < num * _LENGTH, 1)  # of all keys, or of none
    gl.store(part_k + place, sum_k * _SCALE, mask=is_part)
    gl.store(part_v + place, sum_v, mask=is_part)


@gluon.jit
def _part(firsts, first_parts, blocks, num_blocks, num_streams, ALIKE: gl.constexpr):
    """The program's block of all streams, where its readers begin, and how many there are; none of no part."""
    found, part = gl.load(blocks + gl.program_id(0)), gl.program_id(0).to(gl.int64)
    block = gl.minimum(found, num_blocks * num_streams - 1)
    begin, nth = gl.load(firsts + block), part - gl.load(first_parts + block)
    num, num_parts = gl.load(firsts + block + 1) - begin, gl.load(first_parts + block + 1) - part + nth
    num_parts = gl.maximum(num_parts, 1)
    each = (num + num_parts * ALIKE - 1) // (num_parts * ALIKE) * ALIKE
    num_readers = gl.where(found == block, gl.minimum(num - nth * each, each), 0).to(gl.int32)
    return block, begin + nth * each, num_readers


@gluon.jit
def _over_readers(
    q_tiles, grad_tiles, queries, num_readers, first_row, first_query, terms, rows_of, grads_of, q_bars, grad_bars,
    sums_of, deltas_of, positions_of, k_of, v_of, kv_bars, start, num, sum_k, sum_v,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Gradients of keys, not scaled, and values over all tiles of readers."""
    # Readers are in the order of queries: those that do not see the whole block come first.
    reader = gl.arange(0, MOST, _FLAT)
    query = gl.load(queries + reader, mask=reader < num_readers, other=0x3FFFFFFF)
    num_early = gl.sum((query < start + (_LENGTH - 1) - first_query).to(gl.int32), 0)
    edge = gl.minimum((num_early * HEADS + _ROWS - 1) // _ROWS, num)
    query = _queries_of_tile(queries, 0, num_readers, HEADS)
    log_sum, delta = _terms_of(terms, query, 0, num_readers, HEADS, GROUPS)
    sums_of.index(0).store(log_sum)
    deltas_of.index(0).store(delta)
    positions_of.index(0).store(first_query + query)
    gl.thread_barrier()
    query = _queries_of_tile(queries, 1, num_readers, HEADS)
    mbarrier.wait(kv_bars.index(0), 0)
    key = start + gl.arange(0, _LENGTH, gl.SliceLayout(1, _MMA))
    for part in gl.static_range(2):
        if part == 0:
            first, last = 0, edge
        else:
            first, last = edge, num
        query, sum_k, sum_v = _steps(
            first, last, num, q_tiles, grad_tiles, queries, query, num_readers, first_row, first_query, terms, rows_of,
            grads_of, q_bars, grad_bars, sums_of, deltas_of, positions_of, k_of, v_of, key, sum_k, sum_v,
            HEADS, GROUPS, part == 0,
        )  # fmt: skip
    return sum_k, sum_v


@gluon.jit
def _steps(
    first, last, num, q_tiles, grad_tiles, queries, query, num_readers, first_row, first_query, terms, rows_of,
    grads_of, q_bars, grad_bars, sums_of, deltas_of, positions_of, k_of, v_of, key, sum_k, sum_v,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Gradients with the parts of the tiles first … last − 1 of num; query [ROWS] is of the tile after, each time."""
    dtype: gl.constexpr = k_of.dtype
    for tile in range(first, last):
        stage, phase = tile % _STAGES, (tile // _STAGES) & 1
        q_tile, grad_tile = _tile(rows_of, stage), _tile(grads_of, stage)
        empty = gl.zeros([_LENGTH, _ROWS], gl.float32, _MMA)
        rows = _rows_of_tile(queries, tile + 1, num_readers, first_row, HEADS, GROUPS)
        mbarrier.wait(q_bars.index(stage), phase)
        scores = warpgroup_mma(k_of, q_tile.permute((1, 0)), empty, use_acc=False, is_async=True)
        mbarrier.wait(grad_bars.index(stage), phase)
        of_weights = warpgroup_mma(v_of, grad_tile.permute((1, 0)), empty, use_acc=False, is_async=True)
        # The next rows are asked for while the products of these run.
        after = (tile + 1) % _STAGES
        _load(q_tiles, rows, q_bars.index(after), rows_of, after, tile + 1 < num, HEADS)
        _load(grad_tiles, rows, grad_bars.index(after), grads_of, after, tile + 1 < num, HEADS)
        log_sum = sums_of.index(tile % 2).load(_COLUMN)
        log_sum_after, delta_after = _terms_of(terms, query, tile + 1, num_readers, HEADS, GROUPS)
        position_after = first_query + query
        query = _queries_of_tile(queries, tile + 2, num_readers, HEADS)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights = gl.exp2(scores * _FACTOR - gl.expand_dims(log_sum, 0))
        if MASKED:
            position = positions_of.index(tile % 2).load(_COLUMN)
            weights = gl.where(gl.expand_dims(key, 1) <= gl.expand_dims(position, 0), weights, 0.0)
        rounded = gl.convert_layout(weights.to(dtype), _PRODUCT)
        running_v = warpgroup_mma(rounded, grad_tile, sum_v, is_async=True)
        delta = deltas_of.index(tile % 2).load(_COLUMN)
        of_weights = warpgroup_mma_wait(1, deps=[of_weights])
        of_scores = (weights * (of_weights - gl.expand_dims(delta, 0))).to(dtype)
        of_scores = gl.convert_layout(of_scores, _PRODUCT)
        running_k = warpgroup_mma(of_scores, q_tile, sum_k, is_async=True)
        sums_of.index((tile + 1) % 2).store(log_sum_after)
        deltas_of.index((tile + 1) % 2).store(delta_after)
        if MASKED:
            positions_of.index((tile + 1) % 2).store(position_after)
        sum_v, sum_k, _rounded, _of_scores = warpgroup_mma_wait(0, deps=[running_v, running_k, rounded, of_scores])
        gl.thread_barrier()  # every warp has done with these rows
    return query, sum_k, sum_v


@gluon.jit
def _tile(buffers, stage):
    """The rows of a tile [rows, channels]."""
    tiles = viewed(buffers, [_STAGES, _ROWS // _AT_ONCE, _SIZE // _HALF, _AT_ONCE, _HALF], _PIECES)
    return viewed(tiles.index(stage), [_ROWS, _SIZE], _TILE)


@gluon.jit
def _queries_of_tile(queries, tile, num_readers, HEADS: gl.constexpr):
    """The query of each row of a tile; of one that is none the last."""
    reader = tile * (_ROWS // HEADS) + gl.arange(0, _ROWS, _FLAT) // HEADS
    return gl.load(queries + gl.minimum(reader, num_readers - 1))


@gluon.jit
def _terms_of(terms, query, tile, num_readers, HEADS: gl.constexpr, GROUPS: gl.constexpr):
    """Peak and log2 of the sum, added up, and delta; of a row that is none so that its probabilities are zero."""
    row = gl.arange(0, _ROWS, _FLAT)
    is_row = tile * (_ROWS // HEADS) + row // HEADS < num_readers
    at = terms + (query * (GROUPS * HEADS) + row % HEADS) * 4
    log_sum = gl.load(at, mask=is_row, other=_OF_NO_ROW) + gl.load(at + 1, mask=is_row, other=0.0)
    return log_sum, gl.load(at + 2, mask=is_row, other=0.0)


@gluon.jit
def _rows_of_tile(queries, tile, num_readers, first_row, HEADS: gl.constexpr, GROUPS: gl.constexpr):
    """The row of the first head of each reader of a tile, at most four; of one that is none that of the last."""
    NUM: gl.constexpr = _ROWS // HEADS
    first, last = tile * NUM, num_readers - 1
    return (
        first_row + gl.load(queries + gl.minimum(first, last)) * (GROUPS * HEADS),
        first_row + gl.load(queries + gl.minimum(first + (1 if NUM > 1 else 0), last)) * (GROUPS * HEADS),
        first_row + gl.load(queries + gl.minimum(first + (2 if NUM > 2 else 0), last)) * (GROUPS * HEADS),
        first_row + gl.load(queries + gl.minimum(first + (3 if NUM > 2 else 0), last)) * (GROUPS * HEADS),
    )


@gluon.jit
def _load(tiles, rows, bar, buffers, stage, is_tile, HEADS: gl.constexpr):
    """Let the copy engine bring the rows of the readers of a tile, one reader after the other."""
    NUM: gl.constexpr = _ROWS // HEADS
    mbarrier.expect(bar, _ROWS * _SIZE * 2, pred=is_tile)
    for nth in gl.static_range(NUM):
        buffer = buffers.index(stage * NUM + nth)
        tma.async_copy_global_to_shared(tiles, [rows[nth] // _AT_ONCE, 0, 0, 0], bar, buffer, pred=is_tile)
