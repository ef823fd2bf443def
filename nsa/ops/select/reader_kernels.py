"""Which queries read a block, as `nsa.ops.select.readers` has it, in three launches where rows are not long.

One bit of every block and query says whether the one is read by the other. Bits are set atomically, which has one
result in whatever order; what is counted and listed by them is in the order of queries.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.select.readers import Readers, most_parts
from nsa.ops.select.readers import readers_of_blocks as by_sorting

_MOST_BITS = 1 << 22  # of one stream: for longer rows sorting is as fast, and takes memory by their length alone
_PAIRS = 512  # of (query, slot) that one program marks
_COUNTED = 8  # blocks whose readers one program counts
_OTHERS, _PARTS, _WORDS, _MORE_WORDS = 1024, 32, 32, 128  # looked at, written, listed and counted at once


def readers_of_blocks(slots: Tensor, first_query: int, num_blocks: int, most: int) -> Readers:
    """The readers among the queries from first_query on of contiguous `slots` [B, T, G, n], in their order.

    A query names a block once. Without their pairs.
    """
    if (slots.shape[1] - first_query) * num_blocks > _MOST_BITS:
        return by_sorting(slots[:, first_query:], first_query, num_blocks, most)
    rows, num_queries, groups, num_slots = slots.shape
    num = num_queries - first_query
    nowhere, num_words = rows * groups * num_blocks, -(-num // 32)
    bits = slots.new_zeros(nowhere, num_words, dtype=torch.int32)
    counts = slots.new_empty(nowhere, dtype=torch.int32)
    query = slots.new_empty(rows * num * groups * num_slots, dtype=torch.int32)
    num_parts = most_parts(query.numel(), nowhere, most)
    first, first_part = (slots.new_empty(nowhere + 1, dtype=torch.int64) for _ in range(2))
    block = slots.new_empty(num_parts, dtype=torch.int64)
    _mark[-(-num * groups * num_slots // _PAIRS), rows](
        slots, bits, first_query, num_queries, num_blocks, num_words, GROUPS=groups, NUM_SLOTS=num_slots, PAIRS=_PAIRS
    )
    _count[(-(-nowhere // _COUNTED),)](bits, counts, nowhere, num_words, BLOCKS=_COUNTED, WORDS=_MORE_WORDS)
    _list[(nowhere + 1,)](
        bits, counts, query, first, first_part, block, first_query, nowhere, num_words, num_parts, most,
        OTHERS=_OTHERS, PARTS=_PARTS, WORDS=_WORDS,
    )  # fmt: skip
    return Readers(query[:0], query, first, first_part, block, most)


_VARYING = ("first_query", "num_queries", "num_blocks", "num_words", "nowhere", "num_parts", "most")


@triton.jit(do_not_specialize=_VARYING)
def _mark(
    slots, bits, first_query, num_queries, num_blocks, num_words,
    GROUPS: tl.constexpr, NUM_SLOTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Set the bits [streams, num_blocks, num_words · 32] of PAIRS (query, slot) pairs of one row."""
    row = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    query, group = pair // (GROUPS * NUM_SLOTS), pair // NUM_SLOTS % GROUPS
    slots += (row * num_queries + first_query) * (GROUPS * NUM_SLOTS)
    block = tl.load(slots + pair, mask=query < num_queries - first_query, other=-1)
    word = ((row * GROUPS + group) * num_blocks + block) * num_words + query // 32
    bit = (tl.full([PAIRS], 1, tl.int32) << query % 32).to(tl.int32)
    tl.atomic_or(bits + word, bit, mask=(block >= 0) & (block < num_blocks), sem="relaxed")


@triton.jit(do_not_specialize=_VARYING)
def _count(bits, counts, nowhere, num_words, BLOCKS: tl.constexpr, WORDS: tl.constexpr):
    """The number of readers of BLOCKS blocks."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    total = tl.zeros([BLOCKS], tl.int32)
    for start in range(0, num_words, WORDS):
        word = start + tl.arange(0, WORDS)
        is_word = (block < nowhere)[:, None] & (word < num_words)[None, :]
        found = tl.load(bits + (block[:, None] * num_words + word[None, :]), mask=is_word, other=0)
        total += tl.sum(_num_set(found), 1)
    tl.store(counts + block, total, mask=block < nowhere)


@triton.jit(do_not_specialize=_VARYING)
def _list(
    bits, counts, queries, firsts, first_parts, blocks, first_query, nowhere, num_words, num_parts, most,
    OTHERS: tl.constexpr, PARTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """The readers of one block, where they and its parts begin, and its parts; of no block, the parts that are none."""
    block = tl.program_id(0).to(tl.int64)
    first, part = block * 0, block * 0
    for start in range(0, tl.program_id(0), OTHERS):
        other = start + tl.arange(0, OTHERS)
        counted = tl.load(counts + other, mask=other < block, other=0)
        first += tl.sum(counted, 0).to(tl.int64)
        part += tl.sum((counted + most - 1) // most, 0).to(tl.int64)
    tl.store(firsts + block, first)
    tl.store(first_parts + block, part)
    count = tl.load(counts + block, mask=block < nowhere, other=0)
    last_part = tl.where(block < nowhere, part + (count + most - 1) // most, num_parts)
    for start in range(part, last_part, PARTS):
        number = start + tl.arange(0, PARTS)
        tl.store(blocks + number, tl.zeros([PARTS], tl.int64) + block, mask=number < last_part)
    bit = tl.arange(0, 32)[None, :]
    for start in range(0, tl.where(block < nowhere, num_words, 0), WORDS):
        word = start + tl.arange(0, WORDS)
        found = tl.load(bits + block * num_words + word, mask=word < num_words, other=0)
        own = _num_set(found)
        before = first + tl.cumsum(own, 0) - own
        below = _num_set(found[:, None] & ((1 << bit) - 1))
        query = first_query + word[:, None] * 32 + bit
        tl.store(queries + (before[:, None] + below), query, mask=((found[:, None] >> bit) & 1) == 1)
        first += tl.sum(own, 0).to(tl.int64)


@triton.jit
def _num_set(x):
    """How many bits of each int32 are set."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    return ((x + (x >> 16)) & 0x3F).to(tl.int32)
