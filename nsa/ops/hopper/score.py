"""What compressed blocks give to selection blocks, on Hopper GPUs.

One head's exponentials are taken while the next head is multiplied.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from nsa.ops.geometry import Geometry
from nsa.ops.hopper.tiles import (
    IN_POWERS_OF_TWO,
    copy_tile,
    end_barriers,
    expect_tile,
    launch,
    load_tile,
    new_barriers,
    tiles_of,
)

# Of one product, and tiles of queries that one program takes; fastest on an H100.
_QUERIES, _KEYS, _TILES, _STAGES = 64, 128, 2, 3


def fits(geometry: Geometry) -> bool:
    """Whether a tile of keys holds whole selection blocks side by side."""
    per_block = geometry.l_sel // geometry.d
    return per_block <= _KEYS and per_block & (per_block - 1) == 0


def given_to_blocks(
    q: Tensor,
    k_cmp: Tensor,
    norm: Tensor,
    geometry: Geometry,
    first_query: int,
    queries: slice,
    inside: Tensor,
    spilled: Tensor,
) -> None:
    """Writes the two numbers of each block as `nsa.ops.score.triton.given_to_blocks` does, with the same bits."""
    num_streams, num, num_numbers = inside.shape
    per_block = geometry.l_sel // geometry.d
    grid = -(-num_numbers * per_block // _KEYS), -(-num // (_QUERIES * _TILES)), num_streams
    lengths = k_cmp.shape[1], q.shape[1], first_query, queries.start, num, num_numbers
    sizes = {
        **{"HEADS": q.shape[2] // k_cmp.shape[2], "GROUPS": k_cmp.shape[2], "SIZE": q.shape[3]},
        **{"PER_BLOCK": per_block, "PER_COMPRESSED": geometry.l // geometry.d, "LENGTH": geometry.l_sel},
        **{"NUM_SLOTS": geometry.n_sel, "QUERIES": _QUERIES, "KEYS": _KEYS, "STAGES": _STAGES, "TILES": _TILES},
    }
    args = tiles_of(q, _QUERIES), tiles_of(k_cmp, _KEYS), norm, inside, spilled, *lengths
    launch(_score, grid, args, sizes, num_warps=4)


@gluon.jit(do_not_specialize=["num_keys", "num_queries", "first_query", "start", "num_tile", "num_numbers"])
def _score(
    q_tiles, k_tiles, norm, inside, spilled, num_keys, num_queries, first_query, start, num_tile, num_numbers,
    HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr, PER_BLOCK: gl.constexpr,
    PER_COMPRESSED: gl.constexpr, LENGTH: gl.constexpr, NUM_SLOTS: gl.constexpr, QUERIES: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """What KEYS compressed blocks give to selection blocks, for TILES times QUERIES queries of one stream."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    dtype: gl.constexpr = k_tiles.dtype
    first_block = gl.program_id(0) * (KEYS // PER_BLOCK)
    tile = (gl.num_programs(1) - 1 - gl.program_id(1)) * TILES  # those that see most come first
    stop = gl.minimum(tile + TILES, (num_tile + QUERIES - 1) // QUERIES)
    # The first tile in which a query chooses by one of these blocks.
    least = gl.maximum(gl.maximum(first_block + 2, NUM_SLOTS) * LENGTH - first_query - start, 0)
    tile = gl.maximum(tile, least // QUERIES)
    if tile < stop:
        stream = gl.program_id(2)
        batch, group = stream // GROUPS, stream % GROUPS
        keys_of = gl.allocate_shared_memory(dtype, [KEYS, SIZE], SHARED)
        rows_of = gl.allocate_shared_memory(dtype, [STAGES, QUERIES, SIZE], SHARED)
        k_bars, q_bars = new_barriers(1), new_barriers(STAGES)
        fence_async_shared()
        gl.thread_barrier()
        first_key = first_block * PER_BLOCK
        load_tile(k_tiles, batch * num_keys + first_key, group * SIZE, k_bars.index(0), keys_of, True)
        first_row, num = batch * num_queries + start + tile * QUERIES, (stop - tile) * HEADS
        for stage in gl.static_range(STAGES):
            row, column = first_row + stage // HEADS * QUERIES, (group * HEADS + stage % HEADS) * SIZE
            load_tile(q_tiles, row, column, q_bars.index(stage), rows_of.index(stage), stage < num)
        norm += (batch.to(gl.int64) * num_queries * GROUPS + group) * HEADS * 2
        place = stream.to(gl.int64) * num_tile * num_numbers
        mbarrier.wait(k_bars.index(0), 0)
        _over_tiles(
            q_tiles, norm, inside + place, spilled + place, keys_of, rows_of, q_bars, tile, num, start,
            num_tile, num_numbers, num_keys, first_key, first_row, group,
            HEADS, GROUPS, SIZE, PER_BLOCK, PER_COMPRESSED, QUERIES, KEYS, STAGES,
        )  # fmt: skip
        end_barriers(k_bars, 1)
        end_barriers(q_bars, STAGES)


@gluon.jit
def _over_tiles(
    q_tiles, norm, inside, spilled, keys_of, rows_of, q_bars, tile, num, start, num_tile, num_numbers, num_keys,
    first_key, first_row, group, HEADS: gl.constexpr, GROUPS: gl.constexpr, SIZE: gl.constexpr,
    PER_BLOCK: gl.constexpr, PER_COMPRESSED: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Every head of the tiles of queries from `tile` on, num in all; a tile's numbers behind its last head."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, MMA)
    FACTOR: gl.constexpr = IN_POWERS_OF_TWO / SIZE**0.5
    row = (start + tile * QUERIES + gl.arange(0, QUERIES, ROW)) * (GROUPS * HEADS)
    is_query = tile * QUERIES + gl.arange(0, QUERIES, ROW) < num_tile
    peak, log_total = _norm_of(norm, row, is_query)
    mbarrier.wait(q_bars.index(0), 0)
    following = _multiply(rows_of.index(0), keys_of, QUERIES, KEYS, MMA)
    for step in range(0, num, HEADS):
        total = gl.zeros([QUERIES, KEYS], gl.float32, MMA)
        for head in range(HEADS):
            scores = warpgroup_mma_wait(0, deps=[following])
            exponents = scores * FACTOR - gl.expand_dims(peak + log_total, 1)
            after = step + head + 1
            _load_ahead(q_tiles, first_row, group, after - 1, num, q_bars, rows_of, HEADS, SIZE, QUERIES, STAGES)
            is_last = (head + 1) // HEADS  # of its tile
            is_query = (tile + is_last) * QUERIES + gl.arange(0, QUERIES, ROW) < num_tile
            row_after = row + (head + 1) % HEADS + is_last * (QUERIES * GROUPS * HEADS)
            peak, log_total = _norm_of(norm, row_after, is_query)
            mbarrier.wait(q_bars.index(after % STAGES), (after // STAGES) & 1, pred=after < num)
            # Behind the last step of rows that nobody asks for.
            following = _multiply(rows_of.index(after % STAGES), keys_of, QUERIES, KEYS, MMA)
            total = total + gl.exp2(exponents)
        _give(
            total, inside, spilled, tile, num_tile, num_numbers, num_keys, first_key,
            PER_BLOCK, PER_COMPRESSED, QUERIES, KEYS, MMA,
        )  # fmt: skip
        row += QUERIES * GROUPS * HEADS
        tile += 1
    warpgroup_mma_wait(0, deps=[following])


@gluon.jit
def _multiply(rows, keys_of, QUERIES: gl.constexpr, KEYS: gl.constexpr, MMA: gl.constexpr):
    """Begin the product of one head's rows and the keys."""
    empty = gl.zeros([QUERIES, KEYS], gl.float32, MMA)
    return warpgroup_mma(rows, keys_of.permute((1, 0)), empty, use_acc=False, is_async=True)


@gluon.jit
def _load_ahead(
    q_tiles, first_row, group, step, num, q_bars, rows_of, HEADS: gl.constexpr, SIZE: gl.constexpr,
    QUERIES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load what comes STAGES steps behind `step`, of num, into the buffer that every warp has done with."""
    ahead = step + STAGES
    row, column = first_row + ahead // HEADS * QUERIES, (group * HEADS + ahead % HEADS) * SIZE
    barrier, buffer = q_bars.index(step % STAGES), rows_of.index(step % STAGES)
    expect_tile(barrier, buffer, ahead < num)
    gl.thread_barrier()
    copy_tile(q_tiles, row, column, barrier, buffer, ahead < num)


@gluon.jit
def _norm_of(norm, row, is_query):
    """Peak and log2 of the sum; of a query that is none so that its probabilities are zero."""
    peak = gl.load(norm + row * 2, mask=is_query, other=float("inf"))
    return peak, gl.load(norm + row * 2 + 1, mask=is_query, other=0.0)


@gluon.jit
def _give(
    total, inside, spilled, tile, num_tile, num_numbers, num_keys, first_key, PER_BLOCK: gl.constexpr,
    PER_COMPRESSED: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Write what the probabilities of one tile give to each of their blocks, and spill over into the next."""
    BLOCKS: gl.constexpr = KEYS // PER_BLOCK
    STORED: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    column = gl.arange(0, KEYS, gl.SliceLayout(0, MMA))
    if first_key + KEYS > num_keys:
        total = gl.where(gl.expand_dims(first_key + column < num_keys, 0), total, 0.0)
    left = PER_BLOCK - column % PER_BLOCK  # strides to the end of its block
    number = first_key // PER_BLOCK + gl.arange(0, BLOCKS, gl.SliceLayout(0, STORED))
    query = tile * QUERIES + gl.arange(0, QUERIES, gl.SliceLayout(1, STORED))
    at = gl.expand_dims(query, 1) * num_numbers + gl.expand_dims(number, 0)
    is_number = gl.expand_dims(query < num_tile, 1) & gl.expand_dims(number < num_numbers, 0)
    # A compressed block counts once for every stride it shares with a selection block.
    share = gl.expand_dims(gl.maximum(gl.minimum(left, PER_COMPRESSED), 0).to(gl.float32), 0)
    found = gl.sum(gl.reshape(total * share, [QUERIES, BLOCKS, PER_BLOCK]), 2)
    gl.store(inside + at, gl.convert_layout(found, STORED), mask=is_number)
    if PER_COMPRESSED > 1:
        share = gl.minimum(gl.maximum(PER_COMPRESSED - left, 0), PER_COMPRESSED).to(gl.float32)
        found = gl.sum(gl.reshape(total * gl.expand_dims(share, 0), [QUERIES, BLOCKS, PER_BLOCK]), 2)
        gl.store(spilled + at, gl.convert_layout(found, STORED), mask=is_number)
