"""Attention of one token of every row as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G.

`attend` takes four launches: the splits of the compressed tokens and of the window, the importance of blocks, the
splits of the chosen blocks (which each of their programs chooses by itself: a launch more takes longer), all parts
merged. Every kernel reads the length on the device and what it does not reach ends at once: the launches of every step
are the same. A split holds as many keys whatever the rows and merges come in one order: the same inputs give the same
bits, a row alone and among others too. Nothing is added atomically.
"""

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.decode.memory import SPLIT, GateParameters, StepMemory
from nsa.ops.geometry import NUM_FORCED
from nsa.ops.kernel_launch import Launch, fit_at_once, overlap, pass_turn, take_turn
from nsa.ops.kernel_tiles import best_ranked, current, factor, load_rows, rows_that_fit, side, store_rows

# Of one product, and how the kernels are launched; fastest on an H200.
_MOST_ROWS, _KEYS, _SELECTED_KEYS = 64, 64, 128
_READ, _READ_FEW = {"num_warps": 4, "num_stages": 2}, {"num_warps": 4, "num_stages": 3}  # for more programs than SMs
_SCORE, _READ_SELECTED, _MERGE = {"num_warps": 4}, {"num_warps": 4, "num_stages": 1}, {"num_warps": 1}
_BLOCKS = 64  # whose importance one program computes
_PARTS = 32  # merged at once
_UNROLLED = 8  # loads of scores that are under way at once


def attend(memory: StepMemory, gate: GateParameters) -> Tensor:
    """The gated mix [B, 1, H·Dv] of the branches for the token that `add_token` took in; written over by the next."""
    if "attend" not in memory.launches:
        memory.launches["attend"] = _attending(memory, -1 if gate.alone is None else gate.alone)
    with current(memory.q.device):
        for launch in memory.launches["attend"]:
            launch()
    return memory.out


def _attending(m: StepMemory, alone: int) -> list[Launch]:
    """The four launches of a step's attention."""
    geometry, sizes, streams = m.geometry, _sizes(m), _num_streams(m)
    heads, num_cmp, num_win, num_parts = sizes["HEADS"], m.k_cmp.shape[2], m.k_win.shape[2], m.parts.shape[2]
    (splits_cmp, splits_win, _), num_blocks = m.num_splits, m.importance.shape[2]
    overlapping, rows = {"OVERLAPS": overlap(m.q.device)}, {"ROWS": min(_MOST_ROWS, side(heads))}
    tiles = -(-heads // rows["ROWS"])
    stairs = {"LENGTH": geometry.l, "STRIDE": geometry.d, "SPLIT": SPLIT}
    blocks = {"L_SEL": geometry.l_sel, "NUM_SLOTS": geometry.n_sel}
    reading, keys, selected_keys = _reading(m)
    slots_each = max(1, min(selected_keys // geometry.l_sel, geometry.n_sel))
    splits_sel, of_slots = -(-geometry.n_sel // slots_each), {"SLOTS_EACH": slots_each}
    padded = side(splits_cmp + splits_win + splits_sel)
    choosing = {"NUM_FORCED": NUM_FORCED, "BLOCKS": side(max(num_blocks, geometry.n_sel))}
    launches = (
        (_read, (splits_cmp + splits_win, streams, tiles),
         (m.q, m.k_cmp, m.v_cmp, m.k_win, m.v_win, m.count, m.scores, m.parts, m.norms, num_cmp, num_win, splits_cmp,
          num_parts), sizes | rows | stairs | {"KEYS": keys}, reading),
        (_score, (-(-num_blocks // _BLOCKS), streams, 1),
         (m.scores, m.norms, m.importance, m.count, num_cmp, num_parts, num_blocks),
         {"HEADS": heads, "PADDED": side(heads), "PARTS": side(splits_cmp), "BLOCKS": _BLOCKS,
          "UNROLLED": min(_UNROLLED, (geometry.l + geometry.l_sel) // geometry.d - 1)} | stairs | blocks,
         _SCORE),
        (_read_selected, (splits_sel, streams, tiles),
         (m.q, m.k_sel, m.v_sel, m.count, m.importance, m.slots, m.parts, m.norms, m.capacity, num_blocks,
          splits_cmp + splits_win, num_parts),
         sizes | rows | blocks | of_slots | choosing | {"KEYS": selected_keys}, _READ_SELECTED),
        (_merge, (streams * heads, 1, 1),
         (m.parts, m.norms, m.gates, m.count, m.out, splits_cmp, splits_win, num_parts, num_win),
         {name: sizes[name] for name in ("HEADS", "SIZE_V", "WIDTH_V")} | stairs | blocks | of_slots
         | {"PADDED": padded, "PARTS": min(_PARTS, padded), "ALONE": alone}, _MERGE),
    )  # fmt: skip
    return [
        Launch(kernel, grid, args, constants | overlapping, options | {"launch_pdl": overlapping["OVERLAPS"]})
        for kernel, grid, args, constants, options in launches
        if kernel is not _score or num_blocks > geometry.n_sel
    ]


def _reading(m: StepMemory) -> tuple[dict[str, int], int, int]:
    """How the splits are read, and the keys of one product: of compressed and sliding tokens, and of chosen blocks.

    Few programs load further ahead, which changes no bit.
    """
    device, widths = m.q.device, (side(m.k_sel.shape[3]), side(m.v_sel.shape[3]))
    keys = rows_that_fit(_KEYS, device, *widths, num_stages=_READ["num_stages"])
    selected_keys = rows_that_fit(_SELECTED_KEYS, device, *widths, num_stages=1)
    are_few = fit_at_once(m.num_programs, device)
    fits = rows_that_fit(_KEYS, device, *widths, num_stages=_READ_FEW["num_stages"]) == keys
    return _READ_FEW if fits and are_few else _READ, keys, selected_keys


def _num_streams(m: StepMemory) -> int:
    """Rows times groups."""
    return m.k_sel.shape[0] * m.k_sel.shape[1]


def _sizes(m: StepMemory) -> dict[str, int]:
    """What most kernels are compiled for."""
    size_k, size_v = m.k_sel.shape[3], m.v_sel.shape[3]
    return {
        "HEADS": m.q.shape[1] // m.k_sel.shape[1],
        "SIZE_K": size_k,
        "SIZE_V": size_v,
        "WIDTH_K": side(size_k),
        "WIDTH_V": side(size_v),
    }


@triton.jit
def _num_compressed(num_tokens, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Complete compressed blocks in so many tokens."""
    return tl.maximum(num_tokens - LENGTH + STRIDE, 0) // STRIDE


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
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One split of the compressed tokens, whose scores are kept too, or of the window."""
    take_turn(OVERLAPS)
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
    pass_turn(OVERLAPS)
    _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=["num_cmp", "num_parts", "num_blocks"])
def _score(
    scores, norms, importance, count, num_cmp, num_parts, num_blocks, HEADS: tl.constexpr, PADDED: tl.constexpr,
    L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, SPLIT: tl.constexpr, UNROLLED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The importance of BLOCKS selection blocks of one row and group (Eq. 9 and 10), of those that are not forced."""
    take_turn(OVERLAPS)
    stream = tl.program_id(1).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    newest = (num_tokens - 1) // L_SEL
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    if (newest < NUM_SLOTS) | (tl.program_id(0) * BLOCKS > newest - 2):
        return
    head = tl.arange(0, PADDED)
    num_seen = _num_compressed(num_tokens, LENGTH, STRIDE)
    peak, log_total = _normaliser(
        norms + stream * HEADS * num_parts * 2, (num_seen + SPLIT - 1) // SPLIT, num_parts, HEADS, PADDED, PARTS
    )
    scores += stream * HEADS * num_cmp + head[:, None] * num_cmp
    per_compressed: tl.constexpr = LENGTH // STRIDE
    per_block: tl.constexpr = L_SEL // STRIDE
    found = tl.zeros([BLOCKS], tl.float32)
    for place in tl.range(1 - per_compressed, per_block, loop_unroll_factor=UNROLLED):
        key = block * per_block + place
        is_score = (head < HEADS)[:, None] & ((key >= 0) & (key < num_seen))[None, :]
        score = tl.load(scores + key[None, :], mask=is_score, other=float("-inf"))
        shared = tl.minimum(place + per_compressed, per_block) - tl.maximum(place, 0)  # strides
        found += shared * tl.sum(tl.exp2(score - peak[:, None] - log_total[:, None]), 0)
    pass_turn(OVERLAPS)
    tl.store(importance + stream * num_blocks + block, found, mask=block < num_blocks)


@triton.jit
def _normaliser(norms, num, num_parts, HEADS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr):
    """Peak and log2 of the sum of each head, by the peaks and sums of its first `num` parts."""
    head, part = tl.arange(0, PADDED), tl.arange(0, PARTS)
    at = (head[:, None] * num_parts + part[None, :]) * 2
    is_part = (head < HEADS)[:, None] & (part < num)[None, :]
    peaks = tl.load(norms + at, mask=is_part, other=float("-inf"))
    totals = tl.load(norms + at + 1, mask=is_part, other=0.0)
    peak = tl.max(peaks, 1)
    origin = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - origin[:, None]), 1)
    return origin, tl.log2(tl.where(total == 0, 1.0, total))  # of no head


@triton.jit(do_not_specialize=["num_sel", "num_blocks", "first_part", "num_parts"])
def _read_selected(
    q, k_sel, v_sel, count, importance, slots, parts, norms, num_sel, num_blocks, first_part, num_parts,
    HEADS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS_EACH: tl.constexpr,
    NUM_FORCED: tl.constexpr, BLOCKS: tl.constexpr, KEYS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """SLOTS_EACH of the slots of one row and group, in one tile of keys, or one slot that is longer than a tile."""
    take_turn(OVERLAPS)
    stream = tl.program_id(1).to(tl.int64)
    position = tl.load(count + 1)
    newest = position // L_SEL
    first_slot = tl.program_id(0) * SLOTS_EACH
    if first_slot > newest:
        return
    slots += stream * NUM_SLOTS
    is_first = (tl.program_id(0) == 0) & (tl.program_id(2) == 0)
    slot = _choose(importance + stream * num_blocks, slots, newest, is_first, NUM_SLOTS, NUM_FORCED, BLOCKS)
    every, lane = tl.arange(0, BLOCKS), tl.arange(0, KEYS)
    own = lane // L_SEL if SLOTS_EACH > 1 else lane * 0
    block = tl.full([KEYS], -1, tl.int32)
    for index in range(SLOTS_EACH):
        found = tl.max(tl.where(slot == first_slot + index, every, -1), 0)
        block = tl.where(own == index, found, block)
    within = lane - own * L_SEL
    num_left = tl.where(block >= 0, position + 1 - block * L_SEL, 0)  # tokens from the block's first one on
    first_row = stream * HEADS + tl.program_id(2) * ROWS
    row = tl.arange(0, ROWS)
    is_row = tl.program_id(2) * ROWS + row < HEADS
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    k_sel += stream * num_sel * SIZE_K
    v_sel += stream * num_sel * SIZE_V
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for past in range(0, tl.minimum(L_SEL, tl.max(num_left, 0)), KEYS):
        is_key = within + past < tl.minimum(L_SEL, num_left)
        token = block * L_SEL + within + past
        k_tile = load_rows(k_sel, token, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v_sel, token, is_key, SIZE_V, WIDTH_V)
        scores = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        peak, total, mixed = _meet(scores, v_tile, peak, total, mixed)
    pass_turn(OVERLAPS)
    part = first_part + tl.program_id(0)
    _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit
def _choose(
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


@triton.jit(do_not_specialize=["splits_cmp", "splits_win", "num_parts", "num_win"])
def _merge(
    parts, norms, gates, count, out, splits_cmp, splits_win, num_parts, num_win, HEADS: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr,
    SLOTS_EACH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, SPLIT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The gated mix of one head, or the one branch that counts ALONE; and one token more is held."""
    take_turn(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    parts += row * num_parts * SIZE_V
    norms += row * num_parts * 2
    # Where the parts of each branch end; they begin at 0, splits_cmp and splits_cmp + splits_win.
    end_cmp = (_num_compressed(num_tokens, LENGTH, STRIDE) + SPLIT - 1) // SPLIT
    end_win = splits_cmp + (tl.minimum(num_tokens, num_win) + SPLIT - 1) // SPLIT
    num_slots = tl.minimum((num_tokens - 1) // L_SEL + 1, NUM_SLOTS)
    end_sel = splits_cmp + splits_win + (num_slots + SLOTS_EACH - 1) // SLOTS_EACH
    first_sel = splits_cmp + splits_win
    every = tl.arange(0, PADDED)
    is_cmp, is_sel, is_win = _branches(every, end_cmp, splits_cmp, end_win, first_sel, end_sel, ALONE)
    gates += row // HEADS * 3
    peak_cmp, factor_cmp = _branch(norms, every, is_cmp, gates, ALONE == -1)
    peak_sel, factor_sel = _branch(norms, every, is_sel, gates + 1, ALONE == -1)
    peak_win, factor_win = _branch(norms, every, is_win, gates + 2, ALONE == -1)
    mixed = tl.zeros([WIDTH_V], tl.float32)
    for start in range(0, end_sel, PARTS):
        part = start + tl.arange(0, PARTS)
        of_cmp, of_sel, of_win = _branches(part, end_cmp, splits_cmp, end_win, first_sel, end_sel, ALONE)
        is_part = of_cmp | of_sel | of_win
        peak = tl.where(of_cmp, peak_cmp, tl.where(of_sel, peak_sel, peak_win))
        by = tl.where(of_cmp, factor_cmp, tl.where(of_sel, factor_sel, factor_win))
        weights = by * tl.exp2(tl.load(norms + part * 2, mask=is_part, other=float("-inf")) - peak)
        tile = load_rows(parts, part, is_part, SIZE_V, WIDTH_V)
        mixed += tl.sum(tl.where(is_part, weights, 0.0)[:, None] * tile, 0)
    pass_turn(OVERLAPS)
    column = tl.arange(0, WIDTH_V)
    tl.store(out + row * SIZE_V + column, mixed.to(out.dtype.element_ty), mask=column < SIZE_V)
    if row == 0:
        tl.store(count, num_tokens)


@triton.jit
def _branches(part, end_cmp, splits_cmp, end_win, first_sel, end_sel, ALONE: tl.constexpr):
    """Which parts are of the compressed, selected and sliding branch, and count."""
    is_cmp = (part < end_cmp) & ((ALONE == 0) | (ALONE == -1))
    is_sel = (part >= first_sel) & (part < end_sel) & ((ALONE == 1) | (ALONE == -1))
    is_win = (part >= splits_cmp) & (part < end_win) & ((ALONE == 2) | (ALONE == -1))
    return is_cmp, is_sel, is_win


@triton.jit
def _branch(norms, part, is_own, gate, GATED: tl.constexpr):
    """The peak of a branch's parts, and what makes their sum its share of the mix: its gate by its total."""
    peaks = tl.load(norms + part * 2, mask=is_own, other=float("-inf"))
    totals = tl.load(norms + part * 2 + 1, mask=is_own, other=0.0)
    peak = tl.max(peaks, 0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)  # of a branch that sees nothing
    total = tl.sum(totals * tl.exp2(peaks - peak), 0)
    share = 1.0
    if GATED:
        share = tl.load(gate)
    return peak, share / tl.where(total == 0, 1.0, total)
