"""The choice of blocks as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, any geometry.

Two passes over as many queries at a time as a tile may hold. The first computes the probabilities of the compressed
branch again from its normaliser, adds the heads of a group up in registers and writes two numbers for each selection
block (Eq. 9 and 10): what its own compressed blocks give it, and what they spill over into the block after it. The
second takes the best of each row. Of the three forced blocks nothing is computed; all that the others share with
compressed blocks lies in the past of the query, so that nothing is masked. No probabilities are kept in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT, NUM_FORCED, Geometry, every_block
from nsa.ops.kernel_tiles import (
    best_ranked,
    current,
    load_norm,
    load_rows,
    products_overlap,
    rows_that_fit,
    side,
    weights_of,
)
from nsa.ops.tiles import split, tile_budget
from nsa.types import CompressedKey, Query, Slots

_MOST_QUERIES, _MOST_KEYS = 64, 128  # of one product; fastest on an H200, as is what follows
_SCORE = {"num_warps": 4, "num_stages": 2}
_LEAST_OVERLAPPED = 512  # compressed blocks that kernels for Hopper GPUs serve
_BLOCKS_PER_WARP, _MOST_WARPS = 512, 16  # of the row that one program chooses from


def choose_slots(q: Query, k_cmp: CompressedKey, norm: Tensor, geometry: Geometry, first_query: int) -> Slots:
    """Slots [B, T, G, n_sel] of queries first_query + i, as `nsa.ops.select.vectorized.choose_slots` chooses.

    norm: the compressed branch's normaliser [B, T, H, 2] of these queries and keys.
    """
    num_rows, num_queries, num_groups = q.shape[0], q.shape[1], k_cmp.shape[2]
    num_blocks = geometry.num_blocks(first_query + num_queries)
    if num_blocks <= geometry.n_sel:
        return every_block(num_rows, range(first_query, first_query + num_queries), num_groups, geometry, q.device)
    q, k_cmp, norm = q.detach().contiguous(), k_cmp.detach().contiguous(), norm.contiguous()
    slots = torch.empty(num_rows, num_queries, num_groups, geometry.n_sel, dtype=torch.int64, device=q.device)
    sizes = sizes_of(q, k_cmp, geometry)
    per_query = 2 * num_rows * num_groups * num_blocks * sizes["PIECES"]
    most_queries = max(sizes["QUERIES"], tile_budget(q.device) // per_query // sizes["QUERIES"] * sizes["QUERIES"])
    with current(q.device):
        for queries in split(num_queries, most_queries):
            inside, spilled = given_to_blocks(q, k_cmp, norm, geometry, first_query, queries, sizes)
            choose_tile(inside, spilled, slots, geometry, first_query, queries, sizes["PIECES"])
    return slots


def sizes_of(q: Tensor, k_cmp: Tensor, geometry: Geometry) -> dict[str, Any]:
    """What the first kernel is compiled for.

    A tile of KEYS columns holds whole selection blocks, each in PADDED columns, or one of the PIECES of a longer one.
    """
    width, per_block = side(q.shape[-1]), geometry.l_sel // geometry.d
    keys = rows_that_fit(_MOST_KEYS, q.device, width, num_stages=3)
    padded = min(keys, 1 << (per_block - 1).bit_length())
    return {
        "HEADS": q.shape[2] // k_cmp.shape[2],
        "GROUPS": k_cmp.shape[2],
        "SIZE_K": q.shape[-1],
        "WIDTH_K": width,
        "PER_BLOCK": per_block,
        "PER_COMPRESSED": geometry.l // geometry.d,
        "PADDED": padded,
        "PIECES": -(-per_block // padded),
        "LENGTH": geometry.l_sel,
        "NUM_SLOTS": geometry.n_sel,
        "QUERIES": rows_that_fit(_MOST_QUERIES, q.device, width, num_stages=3),
        "KEYS": keys,
    }


def given_to_blocks(
    q: Tensor,
    k_cmp: Tensor,
    norm: Tensor,
    geometry: Geometry,
    first_query: int,
    queries: slice,
    sizes: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Two numbers [streams, queries, blocks · PIECES] of a slice of the queries, NaN or not where nobody needs them.

    What each block's own compressed blocks give it, and what they spill over into the next (where l > d).
    """
    num_streams, num = k_cmp.shape[0] * k_cmp.shape[2], queries.stop - queries.start
    num_numbers = geometry.num_blocks(first_query + queries.stop) * sizes["PIECES"]
    inside, spilled = (q.new_empty(num_streams, num, num_numbers, dtype=torch.float32) for _ in range(2))
    if k_cmp.shape[1] >= _LEAST_OVERLAPPED and products_overlap(q, k_cmp):
        from nsa.ops.hopper import score  # what it is written in, not every Triton has

        if score.fits(geometry):
            score.given_to_blocks(q, k_cmp, norm, geometry, first_query, queries, inside, spilled)
            return inside, spilled
    grid = -(-num_numbers * sizes["PADDED"] // sizes["KEYS"]), -(-num // sizes["QUERIES"]), num_streams
    _score[grid](
        q, k_cmp, norm, inside, spilled, k_cmp.shape[1], q.shape[1], first_query, queries.start, num, num_numbers,
        **sizes, **_SCORE,
    )  # fmt: skip
    return inside, spilled


def choose_tile(
    inside: Tensor, spilled: Tensor, slots: Tensor, geometry: Geometry, first_query: int, queries: slice, pieces: int
) -> None:
    """Writes the slots of a slice of the queries, by what `given_to_blocks` says of them."""
    (num_streams, num, num_numbers), width = inside.shape, side(inside.shape[2] // pieces)
    _choose[num, num_streams](
        inside, spilled, slots, slots.shape[1], first_query, queries.start, num, num_numbers,
        GROUPS=slots.shape[2], LENGTH=geometry.l_sel, NUM_SLOTS=geometry.n_sel, SLOTS=side(geometry.n_sel),
        PIECES=pieces, SPILLS=geometry.l > geometry.d, WIDTH=width, NUM_FORCED=NUM_FORCED, EMPTY=EMPTY_SLOT,
        num_warps=min(_MOST_WARPS, max(1, width // _BLOCKS_PER_WARP)),
    )  # fmt: skip


# Vary, and are no reason to compile again.
_VARYING = ("num_keys", "num_queries", "first_query", "start", "num_tile", "num_numbers")


@triton.jit(do_not_specialize=_VARYING)
def _score(
    q, k, norm, inside, spilled, num_keys, num_queries, first_query, start, num_tile, num_numbers,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, WIDTH_K: tl.constexpr, PER_BLOCK: tl.constexpr,
    PER_COMPRESSED: tl.constexpr, PADDED: tl.constexpr, PIECES: tl.constexpr, LENGTH: tl.constexpr,
    NUM_SLOTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """What the compressed blocks of one tile give to selection blocks, for QUERIES queries of one stream.

    inside and spilled [streams, num_tile, num_numbers] are of the queries start, start + 1 …, which stand at
    first_query + start on. What no query chooses by is not written: forced blocks, rows that choose every block.
    """
    blocks: tl.constexpr = KEYS // PADDED
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # those that see most come first
    first_block = tl.program_id(0) // PIECES * blocks
    newest = (first_query + start + tl.minimum(tile * QUERIES + QUERIES, num_tile) - 1) // LENGTH
    if (newest < NUM_SLOTS) | (first_block > newest - 2):
        return
    stream = tl.program_id(2).to(tl.int64)
    batch, group = stream // GROUPS, stream % GROUPS
    column = tl.arange(0, KEYS)
    within = tl.program_id(0) % PIECES * KEYS + column % PADDED
    key = (first_block + column // PADDED) * PER_BLOCK + within
    is_key = (within < PER_BLOCK) & (key < num_keys)
    k_tile = load_rows(k, (batch * num_keys + key) * GROUPS + group, is_key, SIZE_K, WIDTH_K)
    query = tile * QUERIES + tl.arange(0, QUERIES)
    is_query = query < num_tile
    first_row = ((batch * num_queries + start + tile * QUERIES) * GROUPS + group) * HEADS
    q += first_row * SIZE_K
    norm += first_row * 2
    total = tl.zeros([QUERIES, KEYS], tl.float32)
    for head in range(HEADS):
        row = tl.arange(0, QUERIES) * (GROUPS * HEADS) + head
        q_tile = load_rows(q, row, is_query, SIZE_K, WIDTH_K)
        peak, log_total = load_norm(norm, row, is_query)
        total += weights_of(q_tile, k_tile, peak, log_total, SIZE_K)
    total = tl.reshape(tl.where(is_key[None, :], total, 0.0), [QUERIES, blocks, PADDED])
    place = stream * num_tile * num_numbers
    number = tl.program_id(0) * blocks + tl.arange(0, blocks)
    at = query[:, None] * num_numbers + number
    is_number = is_query[:, None] & (number < num_numbers)[None, :]
    # A compressed block counts once for every stride it shares with a selection block.
    left = PER_BLOCK - tl.program_id(0) % PIECES * KEYS - tl.arange(0, PADDED)  # strides to the end of its block
    share = tl.maximum(tl.minimum(left, PER_COMPRESSED), 0).to(tl.float32)
    tl.store(inside + place + at, tl.sum(total * share[None, None, :], 2), mask=is_number)
    if PER_COMPRESSED > 1:
        share = tl.minimum(tl.maximum(PER_COMPRESSED - left, 0), PER_COMPRESSED).to(tl.float32)
        tl.store(spilled + place + at, tl.sum(total * share[None, None, :], 2), mask=is_number)


@triton.jit(do_not_specialize=_VARYING)
def _choose(
    inside, spilled, slots, num_queries, first_query, start, num_tile, num_numbers,
    GROUPS: tl.constexpr, LENGTH: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS: tl.constexpr, PIECES: tl.constexpr,
    SPILLS: tl.constexpr, WIDTH: tl.constexpr, NUM_FORCED: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """The slots of one query and group: forced blocks, then the most important, ties to the lower index; ascending."""
    query, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    newest = (first_query + start + query) // LENGTH
    block = tl.arange(0, WIDTH)
    chosen = (block <= newest) & ((block == 0) | (block >= newest - 1) | (newest < NUM_SLOTS))
    # Where slots are fewer than blocks, the rest goes by rank.
    is_ranked = (block > 0) & (block < newest - 1) & (newest >= NUM_SLOTS)
    place = (stream * num_tile + query) * num_numbers
    importance = tl.zeros([WIDTH], tl.float32)
    for piece in tl.static_range(PIECES):
        importance += tl.load(inside + place + block * PIECES + piece, mask=is_ranked, other=0.0)
    if SPILLS:
        for piece in tl.static_range(PIECES):
            importance += tl.load(spilled + place + (block - 1) * PIECES + piece, mask=is_ranked, other=0.0)
    # What is not above zero, NaN too, ranks as zero; floats that are not negative order as their bits do.
    rank = tl.where(importance > 0, importance, 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(is_ranked, rank, -1)
    num_ranked = tl.where(newest >= NUM_SLOTS, NUM_SLOTS - NUM_FORCED, 0)
    chosen = chosen | best_ranked(rank, num_ranked)
    slots += ((stream // GROUPS * num_queries + start + query) * GROUPS + stream % GROUPS) * NUM_SLOTS
    slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(slots + slot, block.to(tl.int64), mask=chosen)
    slot = tl.arange(0, SLOTS)
    tl.store(slots + slot, tl.full([SLOTS], EMPTY, tl.int64), mask=(slot > newest) & (slot < NUM_SLOTS))
