"""One token of every row as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

`add_token` rotates, keeps and weighs what a token brings; `attend` is its attention in four launches: the splits of
the compressed tokens and of the window, the importance of blocks, the splits of the chosen blocks, all parts merged.
Every kernel reads the length on the device and what it does not reach ends at once: the launches of every step are the
same. A split holds as many keys whatever the rows and merges come in one order: the same inputs give the same bits, a
row alone and among others too. Nothing is added atomically.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.decode.memory import SPLIT, StepMemory
from nsa.ops.geometry import NUM_FORCED
from nsa.ops.kernel_tiles import best_ranked, current, factor, load_rows, rows_that_fit, side, store_rows

_MOST_ROWS, _KEYS, _SELECTED_KEYS = 64, 64, 128  # of one product
_READ, _READ_SELECTED = {"num_warps": 4, "num_stages": 3}, {"num_warps": 4, "num_stages": 1}
_ADD, _SCORE, _MERGE = {"num_warps": 4}, {"num_warps": 4}, {"num_warps": 4}
_BLOCKS = 64  # whose importance one program computes
_PARTS = 16  # merged at once
_TOKENS = 32  # averaged at once


class GateParameters(NamedTuple):
    """The weights and biases of the gate's two layers, and how logits become weights.

    temperature: of a softmax, None for a sigmoid. alone: the only branch that counts, None where all do.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    temperature: float | None
    alone: int | None


def add_token(
    memory: StepMemory, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], gate: GateParameters,
    *, averages: bool,
) -> None:  # fmt: skip
    """Take one token of every row into the memory; it stands behind those held, and is held after `attend`.

    q [B, 1, H·Dk], keys of the compressed, selected and sliding branch [B, 1, G·Dk] each, values [B, 1, G·Dv], before
    rotation. averages: a compressed token is the mean of its block, and added where one is due; else whoever calls
    adds it.
    """
    rows, groups, _, size_k = memory.k_sel.shape
    size_v, geometry = memory.v_sel.shape[-1], memory.geometry
    m = memory
    with current(q.device):
        _add_token[rows * groups, 4](
            q, *keys, *values, gate.w1, gate.b1, gate.w2, gate.b2, m.frequencies,
            m.q, m.gates, m.k_cmp, m.k_sel, m.k_win, m.k_new, m.v_cmp, m.v_sel, m.v_win, m.v_new, m.count,
            m.k_cmp.shape[2], m.capacity, m.k_win.shape[2], gate.temperature or 1.0,
            HEADS=m.q.shape[1] // groups, GROUPS=groups, SIZE_K=size_k, SIZE_V=size_v, WIDTH_K=side(size_k),
            WIDTH_V=side(size_v), LENGTH=geometry.l, STRIDE=geometry.d, AVERAGES=averages,
            SOFTMAX=gate.temperature is not None, WEIGHS=gate.alone is None, ROWS=16, CHUNK=_TOKENS, **_ADD,
        )  # fmt: skip


def attend(memory: StepMemory, gate: GateParameters) -> Tensor:
    """The gated mix [B, 1, H·Dv] of the branches for the token that `add_token` took in; written over by the next."""
    m, geometry = memory, memory.geometry
    rows, groups, _, size_k = m.k_sel.shape
    size_v, heads = m.v_sel.shape[-1], m.q.shape[1] // m.k_sel.shape[1]
    streams, (splits_cmp, splits_win, _) = rows * groups, m.num_splits
    sizes = {
        "HEADS": heads, "SIZE_K": size_k, "SIZE_V": size_v, "WIDTH_K": side(size_k), "WIDTH_V": side(size_v),
        "ROWS": min(_MOST_ROWS, side(heads)),
    }  # fmt: skip
    tiles = -(-heads // sizes["ROWS"])
    num_parts, num_cmp, num_blocks = m.parts.shape[2], m.k_cmp.shape[2], m.importance.shape[2]
    stairs = {"LENGTH": geometry.l, "STRIDE": geometry.d, "SPLIT": SPLIT}
    keys = rows_that_fit(_KEYS, m.q.device, sizes["WIDTH_K"], sizes["WIDTH_V"], num_stages=_READ["num_stages"])
    selected = _selected_sizes(memory)
    with current(m.q.device):
        _read[splits_cmp + splits_win, streams, tiles](
            m.q, m.k_cmp, m.v_cmp, m.k_win, m.v_win, m.count, m.scores, m.parts, m.norms,
            num_cmp, m.k_win.shape[2], splits_cmp, num_parts, **sizes, **stairs, KEYS=keys, **_READ,
        )  # fmt: skip
        if num_blocks > geometry.n_sel:
            _score[-(-num_blocks // _BLOCKS), streams](
                m.scores, m.norms, m.importance, m.count, num_cmp, num_parts, num_blocks,
                HEADS=heads, PADDED=side(heads), L_SEL=geometry.l_sel, NUM_SLOTS=geometry.n_sel, BLOCKS=_BLOCKS,
                **stairs, **_SCORE,
            )  # fmt: skip
        _read_selected[selected["NUM_SPLITS"], streams, tiles](
            m.q, m.k_sel, m.v_sel, m.count, m.importance, m.slots, m.parts, m.norms,
            m.capacity, num_blocks, splits_cmp + splits_win, num_parts, **sizes, **selected, **_READ_SELECTED,
        )  # fmt: skip
        _merge[streams * heads,](
            m.parts, m.norms, m.gates, m.count, m.out, splits_cmp, splits_win, num_parts, m.k_win.shape[2],
            HEADS=heads, SIZE_V=size_v, WIDTH_V=side(size_v), L_SEL=geometry.l_sel, NUM_SLOTS=geometry.n_sel,
            SLOTS_EACH=selected["SLOTS_EACH"], PARTS=_PARTS, ALONE=-1 if gate.alone is None else gate.alone, **stairs,
            **_MERGE,
        )  # fmt: skip
    return m.out


def _selected_sizes(memory: StepMemory) -> dict[str, Any]:
    """What the kernel of the selected branch is compiled for; a program takes a tile of keys, or one longer slot."""
    geometry = memory.geometry
    widths = side(memory.k_sel.shape[-1]), side(memory.v_sel.shape[-1])
    keys = rows_that_fit(_SELECTED_KEYS, memory.q.device, *widths, num_stages=1)
    each = max(1, min(keys // geometry.l_sel, geometry.n_sel))
    return {
        "L_SEL": geometry.l_sel,
        "NUM_SLOTS": geometry.n_sel,
        "SLOTS_EACH": each,
        "NUM_SPLITS": -(-geometry.n_sel // each),
        "NUM_FORCED": NUM_FORCED,
        "BLOCKS": side(max(memory.importance.shape[2], geometry.n_sel)),
        "KEYS": keys,
    }


@triton.jit
def _num_compressed(num_tokens, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Complete compressed blocks in so many tokens."""
    return tl.maximum(num_tokens - LENGTH + STRIDE, 0) // STRIDE


@triton.jit
def _turned(x, row, is_row, cos, sin, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of `x` [..., SIZE] with their channel pairs turned, float32 [rows, WIDTH]."""
    pair = tl.arange(0, WIDTH // 2)
    at = row[:, None] * SIZE + 2 * pair[None, :]
    mask = is_row[:, None] & (pair < SIZE // 2)[None, :]
    even = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(x + at + 1, mask=mask, other=0.0).to(tl.float32)
    turned = tl.join(even * cos[None, :] - odd * sin[None, :], even * sin[None, :] + odd * cos[None, :])
    return tl.reshape(turned, [even.shape[0], WIDTH])


@triton.jit
def _keep(
    memory_cmp, memory_sel, memory_win, memory_new, stream, position, num_cmp, num_sel, num_win, of_cmp, of_sel, of_win,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr,
    AVERAGES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write a token's key or value [1, WIDTH] of each branch where it belongs, and the mean of a block that it ends."""
    row, is_row = tl.zeros([1], tl.int32), tl.full([1], 1, tl.int1)
    store_rows(memory_sel + (stream * num_sel + position) * SIZE, row, is_row, of_sel, SIZE, WIDTH)
    store_rows(memory_win + (stream * num_win + position % num_win) * SIZE, row, is_row, of_win, SIZE, WIDTH)
    ring = memory_new + stream * LENGTH * SIZE
    own = position % LENGTH
    kept = of_cmp.to(memory_new.dtype.element_ty)
    is_due = (position + 1 >= LENGTH) & ((position + 1 - LENGTH) % STRIDE == 0) & AVERAGES
    if is_due:
        total = tl.sum(kept.to(tl.float32), 0)
        for start in range(0, LENGTH, CHUNK):
            slot = start + tl.arange(0, CHUNK)
            tile = load_rows(ring, slot, (slot < LENGTH) & (slot != own), SIZE, WIDTH)
            total += tl.sum(tile.to(tl.float32), 0)
        at = stream * num_cmp + (position + 1 - LENGTH) // STRIDE
        store_rows(memory_cmp + at * SIZE, row, is_row, (total / LENGTH)[None, :], SIZE, WIDTH)
    store_rows(ring + own * SIZE, row, is_row, kept, SIZE, WIDTH)


@triton.jit
def _gate(
    q, w1, b1, w2, b2, gates, temperature, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    SOFTMAX: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The weights of the branches by the mean of a group's queries."""
    mean = tl.zeros([WIDTH], tl.float32)
    for start in range(0, HEADS, ROWS):
        row = start + tl.arange(0, ROWS)
        mean += tl.sum(load_rows(q, row, row < HEADS, SIZE, WIDTH).to(tl.float32), 0)
    mean = mean / HEADS
    branch = tl.arange(0, 4)
    logits = tl.load(b2 + branch, mask=branch < 3, other=0.0).to(tl.float32)
    for start in range(0, SIZE, CHUNK):
        unit = start + tl.arange(0, CHUNK)
        weights = load_rows(w1, unit, unit < SIZE, SIZE, WIDTH).to(tl.float32)
        hidden = tl.sum(weights * mean[None, :], 1) + tl.load(b1 + unit, mask=unit < SIZE, other=0.0).to(tl.float32)
        hidden = hidden / (1 + tl.exp(-hidden))
        is_weight = (branch < 3)[:, None] & (unit < SIZE)[None, :]
        second = tl.load(w2 + branch[:, None] * SIZE + unit[None, :], mask=is_weight, other=0.0).to(tl.float32)
        logits += tl.sum(second * hidden[None, :], 1)
    if SOFTMAX:
        logits = tl.where(branch < 3, logits / temperature, float("-inf"))
        weights = tl.exp(logits - tl.max(logits, 0))
        weights = weights / tl.sum(weights, 0)
    else:
        weights = 1 / (1 + tl.exp(-logits))
    tl.store(gates + branch, weights, mask=branch < 3)


@triton.jit(do_not_specialize=["num_cmp", "num_sel", "num_win", "temperature"])
def _add_token(
    q, k_cmp, k_sel, k_win, v_cmp, v_sel, v_win, w1, b1, w2, b2, frequencies,
    turned_q, gates, keys_cmp, keys_sel, keys_win, keys_new, values_cmp, values_sel, values_win, values_new, count,
    num_cmp, num_sel, num_win, temperature,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, AVERAGES: tl.constexpr, SOFTMAX: tl.constexpr,
    WEIGHS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One part of what a token brings to one row and group: its queries, its gates, its keys or its values."""
    stream, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(count)
    if (part == 0) | (part == 2):
        pair = tl.arange(0, WIDTH_K // 2)
        angle = position.to(tl.float64) * tl.load(frequencies + pair, mask=pair < SIZE_K // 2, other=0.0)
        cos, sin = tl.cos(angle).to(tl.float32), tl.sin(angle).to(tl.float32)
        if part == 0:
            if stream == 0:
                tl.store(count + 1, position)
            for start in range(0, HEADS, ROWS):
                row = start + tl.arange(0, ROWS)
                first = stream * HEADS * SIZE_K
                turned = _turned(q + first, row, row < HEADS, cos, sin, SIZE_K, WIDTH_K)
                store_rows(turned_q + first, row, row < HEADS, turned, SIZE_K, WIDTH_K)
        else:
            row, is_row = tl.zeros([1], tl.int32), tl.full([1], 1, tl.int1)
            _keep(
                keys_cmp, keys_sel, keys_win, keys_new, stream, position, num_cmp, num_sel, num_win,
                _turned(k_cmp + stream * SIZE_K, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                _turned(k_sel + stream * SIZE_K, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                _turned(k_win + stream * SIZE_K, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                SIZE_K, WIDTH_K, LENGTH, STRIDE, AVERAGES, CHUNK,
            )  # fmt: skip
    elif part == 1:
        if WEIGHS:
            _gate(
                q + stream * HEADS * SIZE_K, w1, b1, w2, b2, gates + stream * 3, temperature, HEADS, SIZE_K, WIDTH_K,
                SOFTMAX, ROWS, CHUNK,
            )  # fmt: skip
    else:
        row, is_row = tl.zeros([1], tl.int32), tl.full([1], 1, tl.int1)
        _keep(
            values_cmp, values_sel, values_win, values_new, stream, position, num_cmp, num_sel, num_win,
            load_rows(v_cmp + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v_sel + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v_win + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            SIZE_V, WIDTH_V, LENGTH, STRIDE, AVERAGES, CHUNK,
        )  # fmt: skip


@triton.jit
def _meet(scores, v_tile, peak, total, mixed):
    """Peak, sum and unnormalised output of rows that have met more keys, by scores in powers of two."""
    highest = tl.maximum(peak, tl.max(scores, 1))
    origin = tl.where(highest == float("-inf"), 0.0, highest)  # of a row that has seen no key yet
    weights = tl.exp2(scores - origin[:, None])
    shrink = tl.exp2(peak - origin)
    mixed = tl.dot(weights.to(v_tile.dtype), v_tile, mixed * shrink[:, None])
    return highest, total * shrink + tl.sum(weights, 1), mixed


@triton.jit
def _attend_split(
    q_tile, k, v, scores, begin, stop, num_cmp, row, is_row, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr,
    WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SCORED: tl.constexpr,
):  # fmt: skip
    """Peak, sum and unnormalised output over keys begin … stop − 1 of one stream; SCORED: their scores are kept."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for start in range(begin, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = key < stop
        k_tile = load_rows(k, key, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, key, is_key, SIZE_V, WIDTH_V)
        found = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        if SCORED:
            tl.store(scores + row[:, None] * num_cmp + key[None, :], found, mask=is_row[:, None] & is_key[None, :])
        peak, total, mixed = _meet(found, v_tile, peak, total, mixed)
    return peak, total, mixed


@triton.jit
def _store_part(
    parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V: tl.constexpr,
    WIDTH_V: tl.constexpr,
):  # fmt: skip
    """Write one part of rows first_row + row, to be merged."""
    store_rows(parts + (first_row * num_parts + part) * SIZE_V, row * num_parts, is_row, mixed, SIZE_V, WIDTH_V)
    norms += (first_row * num_parts + part) * 2
    tl.store(norms + row * num_parts * 2, peak, mask=is_row)
    tl.store(norms + row * num_parts * 2 + 1, total, mask=is_row)


@triton.jit(do_not_specialize=["num_cmp", "num_win", "splits_cmp", "num_parts"])
def _read(
    q, k_cmp, v_cmp, k_win, v_win, count, scores, parts, norms, num_cmp, num_win, splits_cmp, num_parts,
    HEADS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One split of the compressed tokens, whose scores are kept too, or of the window."""
    part, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    is_compressed = part < splits_cmp
    begin = tl.where(is_compressed, part, part - splits_cmp) * SPLIT
    stop = tl.where(is_compressed, _num_compressed(num_tokens, LENGTH, STRIDE), tl.minimum(num_tokens, num_win))
    if begin >= stop:
        return
    stop = tl.minimum(begin + SPLIT, stop)
    first_row = stream * HEADS + tl.program_id(2) * ROWS
    row = tl.arange(0, ROWS)
    is_row = tl.program_id(2) * ROWS + row < HEADS
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    if is_compressed:
        peak, total, mixed = _attend_split(
            q_tile, k_cmp + stream * num_cmp * SIZE_K, v_cmp + stream * num_cmp * SIZE_V,
            scores + first_row * num_cmp, begin, stop, num_cmp, row, is_row, SIZE_K, SIZE_V, WIDTH_K, WIDTH_V, ROWS,
            KEYS, True,
        )  # fmt: skip
    else:
        peak, total, mixed = _attend_split(
            q_tile, k_win + stream * num_win * SIZE_K, v_win + stream * num_win * SIZE_V,
            scores, begin, stop, num_cmp, row, is_row, SIZE_K, SIZE_V, WIDTH_K, WIDTH_V, ROWS, KEYS, False,
        )  # fmt: skip
    _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=["num_cmp", "num_parts", "num_blocks"])
def _score(
    scores, norms, importance, count, num_cmp, num_parts, num_blocks, HEADS: tl.constexpr, PADDED: tl.constexpr,
    L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, BLOCKS: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """The importance of BLOCKS selection blocks of one row and group (Eq. 9 and 10), of those that are not forced."""
    stream = tl.program_id(1).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    newest = (num_tokens - 1) // L_SEL
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    if (newest < NUM_SLOTS) | (tl.program_id(0) * BLOCKS > newest - 2):
        return
    head = tl.arange(0, PADDED)
    is_head = head < HEADS
    num_seen = _num_compressed(num_tokens, LENGTH, STRIDE)
    norms += stream * HEADS * num_parts * 2 + head * num_parts * 2
    peak = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    for part in range((num_seen + SPLIT - 1) // SPLIT):
        found = tl.load(norms + part * 2, mask=is_head, other=0.0)
        highest = tl.maximum(peak, found)
        added = tl.load(norms + part * 2 + 1, mask=is_head, other=1.0) * tl.exp2(found - highest)
        total = total * tl.exp2(peak - highest) + added
        peak = highest
    scores += stream * HEADS * num_cmp + head[:, None] * num_cmp
    log_total = tl.log2(total)
    per_compressed: tl.constexpr = LENGTH // STRIDE
    per_block: tl.constexpr = L_SEL // STRIDE
    found = tl.zeros([BLOCKS], tl.float32)
    for place in range(1 - per_compressed, per_block):
        key = block * per_block + place
        is_key = (key >= 0) & (key < num_seen)
        score = tl.load(scores + key[None, :], mask=is_head[:, None] & is_key[None, :], other=float("-inf"))
        shared = tl.minimum(place + per_compressed, per_block) - tl.maximum(place, 0)  # strides
        found += shared * tl.sum(tl.exp2(score - peak[:, None] - log_total[:, None]), 0)
    tl.store(importance + stream * num_blocks + block, found, mask=block < num_blocks)


@triton.jit(do_not_specialize=["num_sel", "num_blocks", "first_part", "num_parts"])
def _read_selected(
    q, k_sel, v_sel, count, importance, slots, parts, norms, num_sel, num_blocks, first_part, num_parts,
    HEADS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS_EACH: tl.constexpr,
    NUM_SPLITS: tl.constexpr, NUM_FORCED: tl.constexpr, BLOCKS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """SLOTS_EACH of the slots of one row and group: chosen by each of its programs anew, and read."""
    stream = tl.program_id(1).to(tl.int64)
    position = tl.load(count + 1)
    newest = position // L_SEL
    first_slot = tl.program_id(0) * SLOTS_EACH
    if first_slot > newest:
        return
    block = tl.arange(0, BLOCKS)
    is_ranked = (block > 0) & (block < newest - 1) & (newest >= NUM_SLOTS)
    found = tl.load(importance + stream * num_blocks + block, mask=is_ranked, other=0.0)
    # What is not above zero, NaN too, ranks as zero; floats that are not negative order as their bits do.
    rank = tl.where(is_ranked, tl.where(found > 0, found, 0.0).to(tl.int32, bitcast=True), -1)
    chosen = best_ranked(rank, tl.where(newest >= NUM_SLOTS, NUM_SLOTS - NUM_FORCED, 0))
    chosen = chosen | ((block <= newest) & ((block == 0) | (block >= newest - 1) | (newest < NUM_SLOTS)))
    slot = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), 0) - 1, -1)
    is_first = (tl.program_id(0) == 0) & (tl.program_id(2) == 0)
    tl.store(slots + stream * NUM_SLOTS + slot, block, mask=chosen & is_first)
    tl.store(slots + stream * NUM_SLOTS + block, -1, mask=(block > newest) & (block < NUM_SLOTS) & is_first)

    lane = tl.arange(0, KEYS)
    token = lane - KEYS  # of a lane without a slot: none
    last = tl.full([KEYS], -1, tl.int32)
    longest = 0
    for index in range(SLOTS_EACH):
        start = tl.sum(tl.where(slot == first_slot + index, block, 0), 0) * L_SEL
        is_slot = first_slot + index <= tl.minimum(newest, NUM_SLOTS - 1)
        stop = tl.where(is_slot, tl.minimum(start + L_SEL, position + 1), start)
        is_own = (lane // L_SEL == index) | (SLOTS_EACH == 1)
        token = tl.where(is_own, start + lane - index * L_SEL, token)
        last = tl.where(is_own, stop - 1, last)
        longest = tl.maximum(longest, stop - start)

    first_row = stream * HEADS + tl.program_id(2) * ROWS
    row = tl.arange(0, ROWS)
    is_row = tl.program_id(2) * ROWS + row < HEADS
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    k_sel += stream * num_sel * SIZE_K
    v_sel += stream * num_sel * SIZE_V
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for past in range(0, longest, KEYS):
        is_key = (token + past <= last) & (token >= 0)
        k_tile = load_rows(k_sel, token + past, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v_sel, token + past, is_key, SIZE_V, WIDTH_V)
        scores = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        peak, total, mixed = _meet(scores, v_tile, peak, total, mixed)
    part = first_part + tl.program_id(0)
    _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit
def _merged(
    parts, norms, first, num, SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """The output [WIDTH_V] of one branch for one head, by `num` parts from `first` on; zeros where it has none."""
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([WIDTH_V], tl.float32)
    for start in range(0, num, PARTS):
        part = start + tl.arange(0, PARTS)
        is_part = part < num
        peaks = tl.load(norms + (first + part) * 2, mask=is_part, other=float("-inf"))
        totals = tl.load(norms + (first + part) * 2 + 1, mask=is_part, other=0.0)
        tile = load_rows(parts, first + part, is_part, SIZE_V, WIDTH_V)
        highest = tl.maximum(peak, tl.max(peaks, 0))
        origin = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(peaks - origin)
        shrink = tl.exp2(peak - origin)
        total = total * shrink + tl.sum(totals * weights, 0)
        mixed = mixed * shrink + tl.sum(tile * weights[:, None], 0)
        peak = highest
    return mixed / tl.where(total == 0, 1.0, total)


@triton.jit(do_not_specialize=["splits_cmp", "splits_win", "num_parts", "num_win"])
def _merge(
    parts, norms, gates, count, out, splits_cmp, splits_win, num_parts, num_win, HEADS: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr,
    SLOTS_EACH: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """The gated mix of one head, or the one branch that counts ALONE; and one token more is held."""
    row = tl.program_id(0).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    parts += row * num_parts * SIZE_V
    norms += row * num_parts * 2
    gates += row // HEADS * 3
    mixed = tl.zeros([WIDTH_V], tl.float32)
    for branch in tl.static_range(3):
        if (branch == ALONE) | (ALONE == -1):
            if branch == 0:
                first, num = 0, (_num_compressed(num_tokens, LENGTH, STRIDE) + SPLIT - 1) // SPLIT
            elif branch == 1:
                slots = tl.minimum((num_tokens - 1) // L_SEL + 1, NUM_SLOTS)
                first, num = splits_cmp + splits_win, (slots + SLOTS_EACH - 1) // SLOTS_EACH
            else:
                first, num = splits_cmp, (tl.minimum(num_tokens, num_win) + SPLIT - 1) // SPLIT
            found = _merged(parts, norms, first, num, SIZE_V, WIDTH_V, PARTS)
            if ALONE == -1:
                found = found * tl.load(gates + branch)
            mixed += found
    column = tl.arange(0, WIDTH_V)
    tl.store(out + row * SIZE_V + column, mixed.to(out.dtype.element_ty), mask=column < SIZE_V)
    if row == 0:
        tl.store(count, num_tokens)
