"""Which selection blocks one token of every row and group attends to, as parts of Triton kernels."""

import triton
import triton.language as tl

from nsa.ops.kernel_tiles import best_ranked


@triton.jit
def num_compressed(num_tokens, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Complete compressed blocks in so many tokens."""
    return tl.maximum(num_tokens - LENGTH + STRIDE, 0) // STRIDE


@triton.jit
def weigh_blocks(
    first, num_chunks, scores, norms, importance, num_seen, num_cmp, num_parts, num_blocks, HEADS: tl.constexpr,
    PADDED: tl.constexpr, L_SEL: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS: tl.constexpr, BLOCKS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What compressed tokens add to the block that they begin in and to the next (Eq. 9 and 10); `choose` adds both.

    Of num_chunks times BLOCKS blocks from `first` on of one row and group, by the scores of its heads, each read once.
    """
    per_compressed: tl.constexpr = LENGTH // STRIDE
    per_block: tl.constexpr = L_SEL // STRIDE
    place = tl.arange(0, PLACES)
    # Strides that a compressed token shares with the block that it begins in, and with the next.
    own = tl.minimum(per_block - place, per_compressed)[None, :].to(tl.float32)
    next_own = tl.maximum(place + per_compressed - per_block, 0)[None, :].to(tl.float32)
    end = tl.minimum(num_seen, (first + num_chunks * BLOCKS) * per_block)
    # Scores come before the normalisers, so that they are there after them.
    after = _load_scores(scores, first, end, num_cmp, HEADS, PADDED, per_block, BLOCKS, PLACES)
    peak, log_total = _normaliser(norms, (num_seen + SPLIT - 1) // SPLIT, num_parts, HEADS, PADDED, SPLITS)
    shift = (peak + log_total)[:, None]
    for _ in range(num_chunks):  # by the same code, so that a block has the same bits in any of them
        found = after
        block = first + tl.arange(0, BLOCKS)
        first += BLOCKS
        after = _load_scores(scores, first, end, num_cmp, HEADS, PADDED, per_block, BLOCKS, PLACES)
        weights = tl.reshape(tl.sum(tl.exp2(found - shift), 0), [BLOCKS, PLACES])
        tl.store(importance + block, tl.sum(weights * own, 1), mask=block < num_blocks)
        tl.store(importance + num_blocks + block, tl.sum(weights * next_own, 1), mask=block < num_blocks)


@triton.jit
def _load_scores(
    scores, first, end, num_cmp, HEADS: tl.constexpr, PADDED: tl.constexpr, PER_BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Scores [heads, BLOCKS·PLACES] of the compressed tokens before `end` that begin in each block."""
    head, lane = tl.arange(0, PADDED), tl.arange(0, BLOCKS * PLACES)
    key, is_score = first * PER_BLOCK + lane, lane >= 0
    if PLACES != PER_BLOCK:
        key, is_score = (first + lane // PLACES) * PER_BLOCK + lane % PLACES, lane % PLACES < PER_BLOCK
    is_score = (head < HEADS)[:, None] & (is_score & (key < end))[None, :]
    return tl.load(scores + (head[:, None] * num_cmp + key[None, :]), mask=is_score, other=float("-inf"))


@triton.jit
def _normaliser(norms, num, num_parts, HEADS: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    """Peak and log2 of the sum of each head, by the peaks and sums of its first `num` parts."""
    head, lane = tl.arange(0, PADDED), tl.arange(0, SPLITS * 2)
    is_part = (head < HEADS)[:, None] & (lane // 2 < num)[None, :]
    found = tl.load(norms + (head[:, None] * (num_parts * 2) + lane[None, :]), mask=is_part, other=float("-inf"))
    peaks, totals = tl.split(tl.reshape(found, [PADDED, SPLITS, 2]))
    totals = tl.where(peaks == float("-inf"), 0.0, totals)
    peak = tl.max(peaks, 1)
    origin = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - origin[:, None]), 1)
    return origin, tl.log2(tl.where(total == 0, 1.0, total))  # of no head


@triton.jit
def choose(
    importance, slots, newest, num_blocks, writes, NUM_SLOTS: tl.constexpr, NUM_FORCED: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """The slot of each block [BLOCKS] of one row and group (Eq. 11), −1 of those that have none; `writes` the slots."""
    block = tl.arange(0, BLOCKS)
    is_ranked = (block > 0) & (block < newest - 1) & (newest >= NUM_SLOTS)
    found = tl.load(importance + block, mask=is_ranked, other=0.0)
    found += tl.load(importance + num_blocks + block - 1, mask=is_ranked, other=0.0)
    # What is not above zero, NaN too, ranks as zero; floats that are not negative order as their bits do.
    rank = tl.where(is_ranked, tl.where(found > 0, found, 0.0).to(tl.int32, bitcast=True), -1)
    # Where slots are fewer than blocks, what is not forced goes by rank.
    chosen = best_ranked(rank, tl.where(newest >= NUM_SLOTS, NUM_SLOTS - NUM_FORCED, 0))
    chosen = chosen | ((block <= newest) & ((block == 0) | (block >= newest - 1) | (newest < NUM_SLOTS)))
    slot = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), 0) - 1, -1)
    tl.store(slots + slot, block, mask=chosen & writes)
    tl.store(slots + block, tl.full([BLOCKS], -1, tl.int32), mask=(block > newest) & (block < NUM_SLOTS) & writes)
    return slot
