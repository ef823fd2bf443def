"""Which selection blocks one token of every row and group attends to, as parts of Triton kernels."""

import triton
import triton.language as tl

from nsa.ops.kernel_tiles import best_ranked


@triton.jit
def num_compressed(num_tokens, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Complete compressed blocks in so many tokens."""
    return tl.maximum(num_tokens - LENGTH + STRIDE, 0) // STRIDE


@triton.jit
def importance_of(
    block, scores, norms, num_seen, num_cmp, num_parts, HEADS: tl.constexpr, PADDED: tl.constexpr,
    L_SEL: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr,
    UNROLLED: tl.constexpr,
):  # fmt: skip
    """The importance of blocks of one row and group by the scores of its heads (Eq. 9 and 10)."""
    per_compressed: tl.constexpr = LENGTH // STRIDE
    per_block: tl.constexpr = L_SEL // STRIDE
    head = tl.arange(0, PADDED)
    scores += head[:, None] * num_cmp
    # The first score of every block comes before the normalisers, so that what stands beside it is there after them.
    key = block * per_block
    is_score = (head < HEADS)[:, None] & (key < num_seen)[None, :]
    ahead = tl.load(scores + key[None, :], mask=is_score, other=float("-inf"))
    peak, log_total = _normaliser(norms, (num_seen + SPLIT - 1) // SPLIT, num_parts, HEADS, PADDED, SPLITS)
    found = tl.zeros(block.shape, tl.float32)
    for place in tl.range(1 - per_compressed, per_block, loop_unroll_factor=UNROLLED):
        key = block * per_block + place
        is_score = (head < HEADS)[:, None] & ((key >= 0) & (key < num_seen) & (place != 0))[None, :]
        score = tl.load(scores + key[None, :], mask=is_score, other=float("-inf"))
        score = tl.where(place == 0, ahead, score)
        shared = tl.minimum(place + per_compressed, per_block) - tl.maximum(place, 0)  # strides
        found += shared * tl.sum(tl.exp2(score - peak[:, None] - log_total[:, None]), 0)
    return found


@triton.jit
def _normaliser(norms, num, num_parts, HEADS: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    """Peak and log2 of the sum of each head, by the peaks and sums of its first `num` parts."""
    head, part = tl.arange(0, PADDED), tl.arange(0, SPLITS)
    at = (head[:, None] * num_parts + part[None, :]) * 2
    is_part = (head < HEADS)[:, None] & (part < num)[None, :]
    peaks = tl.load(norms + at, mask=is_part, other=float("-inf"))
    totals = tl.load(norms + at + 1, mask=is_part, other=0.0)
    peak = tl.max(peaks, 1)
    origin = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - origin[:, None]), 1)
    return origin, tl.log2(tl.where(total == 0, 1.0, total))  # of no head


@triton.jit
def choose(
    importance, slots, newest, writes, NUM_SLOTS: tl.constexpr, NUM_FORCED: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """The slot of each block [BLOCKS] of one row and group (Eq. 11), −1 of those that have none; `writes` the slots."""
    block = tl.arange(0, BLOCKS)
    is_ranked = (block > 0) & (block < newest - 1) & (newest >= NUM_SLOTS)
    found = tl.load(importance + block, mask=is_ranked, other=0.0)
    # What is not above zero, NaN too, ranks as zero; floats that are not negative order as their bits do.
    rank = tl.where(is_ranked, tl.where(found > 0, found, 0.0).to(tl.int32, bitcast=True), -1)
    # Where slots are fewer than blocks, what is not forced goes by rank.
    chosen = best_ranked(rank, tl.where(newest >= NUM_SLOTS, NUM_SLOTS - NUM_FORCED, 0))
    chosen = chosen | ((block <= newest) & ((block == 0) | (block >= newest - 1) | (newest < NUM_SLOTS)))
    slot = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), 0) - 1, -1)
    tl.store(slots + slot, block, mask=chosen & writes)
    tl.store(slots + block, tl.full([BLOCKS], -1, tl.int32), mask=(block > newest) & (block < NUM_SLOTS) & writes)
    return slot
