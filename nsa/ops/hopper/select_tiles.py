"""What the kernels of the selected branch for Hopper GPUs share: where a program's queries and keys lie, and loads."""

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from nsa.ops.geometry import NUM_FORCED, Geometry
from nsa.ops.hopper.internal import viewed
from nsa.ops.hopper.tiles import IN_POWERS_OF_TWO, clear_rows, copy_tile, tiles_of
from nsa.ops.kernel_tiles import LEAST_SIDE

QUERIES, ROWS, SIZE = gl.constexpr(4), gl.constexpr(64), gl.constexpr(128)  # of one program, and channels
LENGTH, KEYS_AT_ONCE = gl.constexpr(64), gl.constexpr(32)  # of a block, and of a chosen one
ROWS_EACH = gl.constexpr(LEAST_SIDE)  # of a query
WARPS = 4
_FORCED = gl.constexpr(NUM_FORCED)
FACTOR = gl.constexpr(IN_POWERS_OF_TWO / 128**0.5)


def _bases(*, is_transposed: bool) -> list[list[int]]:
    """Which element of [queries, keys, channels] lies at each power of two of a tile of each query's keys.

    The copy engine has brought the tiles one by one: half of a row's 256 bytes after the other, 16 bytes at a time, and
    where in 128 bytes those lie the last three bits of the key say.
    """

    def at(channel: int, key: int) -> list[int]:
        return [0, channel, key] if is_transposed else [0, key, channel]

    in_a_row = [at(1 << bit, 0) for bit in range(6)]
    of_rows = [at(8, 1), at(16, 2), at(32, 4), at(0, 8), at(0, 16)]
    return [*in_a_row, *of_rows, at(64, 0), [1, 0, 0], [2, 0, 0]]


TILES = gl.constexpr(gl.SharedLinearLayout(_bases(is_transposed=False), [], 1024))
TILES_TRANSPOSED = gl.constexpr(gl.SharedLinearLayout(_bases(is_transposed=True), [], 1024))
SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # all rows by 64 keys
MMA_WIDE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))  # all rows by channels
MMA_EACH = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]))  # a query's rows, a warp for each
ALL = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), 2))
ALL_WIDE = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2))
EACH = gl.constexpr(gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]), 2))
KEYS_EACH = gl.constexpr(gl.DotOperandLayout(1, gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]), 2))
COALESCED = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
VARYING = ["num_queries", "num_dense", "num_tokens", "num_tiles"]  # and are no reason to compile again


def tiles_of_blocks(k: Tensor, v: Tensor) -> list[Any]:
    """Keys and values as they are loaded of chosen blocks, and of those that all read."""
    return [tiles_of(x, rows) for rows in (KEYS_AT_ONCE.value, LENGTH.value) for x in (k, v)]


def sizes_of(
    q: Tensor, k: Tensor, geometry: Geometry, num_dense: int
) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """The grid, lengths, and what the kernels are compiled for."""
    queries, (num_tokens, groups) = QUERIES.value, k.shape[1:3]
    first = num_tokens - q.shape[1] + num_dense  # position
    num_tiles = (num_tokens - 1) // queries - first // queries + 1
    sizes = {"HEADS": q.shape[2] // groups, "GROUPS": groups, "NUM_CHOSEN": geometry.n_sel - NUM_FORCED}
    return (q.shape[0] * num_tiles, groups, 1), (q.shape[1], num_dense, num_tokens, num_tiles), sizes


@gluon.jit
def place_of_queries(num_queries, num_dense, num_tokens, num_tiles):
    """The program's row and group; the position of its first query, a multiple of four, and which query that is."""
    first_query = num_tokens - num_queries
    start = ((first_query + num_dense) // QUERIES + gl.program_id(0) % num_tiles) * QUERIES
    return gl.program_id(0) // num_tiles, gl.program_id(1), start, start - first_query


@gluon.jit
def rows_of_heads(
    batch, group, own, num_queries, num_dense, HEADS: gl.constexpr, GROUPS: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """The row of the first query's first head, the rows after it, and which of them exist."""
    pair = gl.arange(0, ROWS, LAYOUT)
    query, head = own + pair // ROWS_EACH, pair % ROWS_EACH
    first = ((batch.to(gl.int64) * num_queries + own) * GROUPS + group) * HEADS
    is_row = (head < HEADS) & (query >= num_dense) & (query < num_queries)
    return first, pair // ROWS_EACH * (GROUPS * HEADS) + head, is_row


@gluon.jit
def slots_of_queries(
    slots, batch, group, own, num_queries, num_dense, GROUPS: gl.constexpr, NUM_CHOSEN: gl.constexpr
):  # fmt: skip
    """Where what each query has chosen begins, behind block 0; of a query that is none, another's."""
    NUM_SLOTS: gl.constexpr = NUM_CHOSEN + _FORCED
    slots += (batch.to(gl.int64) * num_queries * GROUPS + group) * NUM_SLOTS + 1
    low, high, stride = num_dense, num_queries - 1, GROUPS * NUM_SLOTS
    return (
        slots + gl.minimum(gl.maximum(own, low), high).to(gl.int64) * stride,
        slots + gl.minimum(gl.maximum(own + 1, low), high).to(gl.int64) * stride,
        slots + gl.minimum(gl.maximum(own + 2, low), high).to(gl.int64) * stride,
        slots + gl.minimum(gl.maximum(own + 3, low), high).to(gl.int64) * stride,
    )


@gluon.jit
def rows_of_step(slots, step, first_key, NUM_CHOSEN: gl.constexpr):
    """The row of the first key of a step of each query; behind the last step any."""
    PER_BLOCK: gl.constexpr = LENGTH // KEYS_AT_ONCE
    nth = gl.minimum(step // PER_BLOCK, NUM_CHOSEN - 1)
    first = first_key + step % PER_BLOCK * KEYS_AT_ONCE
    return (
        first + gl.load(slots[0] + nth).to(gl.int32) * LENGTH,
        first + gl.load(slots[1] + nth).to(gl.int32) * LENGTH,
        first + gl.load(slots[2] + nth).to(gl.int32) * LENGTH,
        first + gl.load(slots[3] + nth).to(gl.int32) * LENGTH,
    )


@gluon.jit
def load_shared_blocks(k_blocks, v_blocks, first_key, start, column, bar, k_of, v_of):
    """Load what all queries read: three blocks of keys, and of values two behind them and the newest after the keys."""
    keys_of = viewed(k_of, [4, LENGTH, SIZE], SHARED)
    values_of = viewed(v_of, [2, LENGTH, SIZE], SHARED)
    newest = first_key + start // LENGTH * LENGTH
    mbarrier.expect(bar, 6 * LENGTH * SIZE * 2)
    copy_tile(k_blocks, first_key, column, bar, keys_of.index(0), True)
    copy_tile(k_blocks, newest - LENGTH, column, bar, keys_of.index(1), True)
    copy_tile(k_blocks, newest, column, bar, keys_of.index(2), True)
    copy_tile(v_blocks, first_key, column, bar, values_of.index(0), True)
    copy_tile(v_blocks, newest - LENGTH, column, bar, values_of.index(1), True)
    copy_tile(v_blocks, newest, column, bar, keys_of.index(3), True)


@gluon.jit
def load_first(k_tiles, v_tiles, slots, first_key, column, k_of, v_of, k_bars, v_bars, NUM_CHOSEN: gl.constexpr):
    """Load the keys of the first two steps and the values of the first; the rows of the second."""
    rows = rows_of_step(slots, 0, first_key, NUM_CHOSEN)
    rows_after = rows_of_step(slots, 1, first_key, NUM_CHOSEN)
    has_second = NUM_CHOSEN * (LENGTH // KEYS_AT_ONCE) > 1
    _expect(k_bars.index(0), True)
    _expect(v_bars.index(0), True)
    _expect(k_bars.index(1), has_second)
    gl.thread_barrier()
    _copy(k_tiles, rows, column, k_bars.index(0), k_of, 0, True)
    _copy(v_tiles, rows, column, v_bars.index(0), v_of, 0, True)
    _copy(k_tiles, rows_after, column, k_bars.index(1), k_of, QUERIES, has_second)
    return rows_after


@gluon.jit
def load_next(
    k_tiles, v_tiles, k_rows, v_rows, column, k_of, v_of, k_bars, v_bars, step, STEPS: gl.constexpr
):  # fmt: skip
    """Load the keys of the step but one after this and the values of the next, once every warp has done with these."""
    stage, has_keys, has_values = step % 2, step + 2 < STEPS, step + 1 < STEPS
    _expect(k_bars.index(stage), has_keys)
    _expect(v_bars.index(0), has_values)
    gl.thread_barrier()
    _copy(v_tiles, v_rows, column, v_bars.index(0), v_of, 0, has_values)
    _copy(k_tiles, k_rows, column, k_bars.index(stage), k_of, stage * QUERIES, has_keys)


@gluon.jit
def _expect(bar, is_step):
    """Let the barrier wait for what `_copy` brings."""
    mbarrier.expect(bar, QUERIES * KEYS_AT_ONCE * SIZE * 2, pred=is_step)


@gluon.jit
def _copy(tiles, rows, column, bar, buffers, first, is_step):
    """Let the copy engine bring a tile of each query to the buffers from `first` on."""
    copy_tile(tiles, rows[0], column, bar, buffers.index(first), is_step)
    copy_tile(tiles, rows[1], column, bar, buffers.index(first + 1), is_step)
    copy_tile(tiles, rows[2], column, bar, buffers.index(first + 2), is_step)
    copy_tile(tiles, rows[3], column, bar, buffers.index(first + 3), is_step)


@gluon.jit
def clear_future(buffer, start, num_tokens):
    """Make zero what no query of the program reads of the newest block."""
    num_read = gl.minimum(start + QUERIES, num_tokens) - start // LENGTH * LENGTH
    if num_read < LENGTH:
        clear_rows(buffer, num_read, COALESCED)
        fence_async_shared()
        gl.thread_barrier()


@gluon.jit
def is_read(start):
    """Which keys of the newest block rows may read."""
    token = start // LENGTH * LENGTH + gl.arange(0, LENGTH, gl.SliceLayout(0, MMA))
    position = start + gl.arange(0, ROWS, gl.SliceLayout(1, MMA)) // ROWS_EACH
    return gl.expand_dims(token, 0) <= gl.expand_dims(position, 1)
