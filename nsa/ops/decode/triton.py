"""Attention of one token of every row as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G.

`attend` takes four launches: the splits of the compressed tokens; what makes blocks important; the splits of the chosen
blocks (which each of their programs chooses by itself: a launch more takes longer), beside those of the window; all
parts merged. Every kernel reads the length on the device and what it does not reach ends at once: the launches of
every step are the same. A split holds as many keys whatever the rows and merges come in one order: the same inputs
give the same bits, a row alone and among others too. Nothing is added atomically.

A kernel starts when all programs of the one before have taken their turn, and so when the one before that has ended:
what was written there, or by `add_token`, it may read before its own turn.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.decode.choice import choose, num_compressed, weigh_blocks
from nsa.ops.decode.memory import SPLIT, GateParameters, StepMemory
from nsa.ops.geometry import NUM_FORCED
from nsa.ops.kernel_launch import Launch, fit_at_once, overlap, pass_turn, take_turn
from nsa.ops.kernel_tiles import current, factor, load_rows, rows_that_fit, side, store_rows

# Of one product, and how the kernels are launched; fastest on an H200.
_MOST_ROWS, _KEYS, _SELECTED_KEYS = 64, 64, 128
_READ, _SCORE, _MERGE = {"num_warps": 4, "num_stages": 1}, {"num_warps": 4}, {"num_warps": 1}
_STAGES, _MOST_QUERIES = 3, 64 * 128  # of the loops that read; elements of queries up to which they do, else 2
_PROGRAMS = 2  # of one multiprocessor, that read the compressed tokens
_SCORES, _CHUNKS = 2048, 2  # that one program weighs at once, and how often where programs are many
_PARTS = 32  # merged at once


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
    geometry, sizes, streams = m.geometry, _sizes(m), m.k_sel.shape[0] * m.k_sel.shape[1]
    heads, num_cmp, num_win, num_parts = sizes["HEADS"], m.k_cmp.shape[2], m.k_win.shape[2], m.parts.shape[2]
    (splits_cmp, splits_win, _), num_blocks = m.num_splits, m.importance.shape[3]
    overlapping, rows = {"OVERLAPS": overlap(m.q.device)}, {"ROWS": min(_MOST_ROWS, side(heads))}
    tiles = -(-heads // rows["ROWS"])
    stairs = {"LENGTH": geometry.l, "STRIDE": geometry.d, "SPLIT": SPLIT}
    blocks = {"L_SEL": geometry.l_sel, "NUM_SLOTS": geometry.n_sel}
    slots_each = max(1, min(_SELECTED_KEYS // geometry.l_sel, geometry.n_sel))
    splits_sel, of_slots = -(-geometry.n_sel // slots_each), {"SLOTS_EACH": slots_each}
    padded = side(splits_cmp + splits_win + splits_sel)
    choosing = {"NUM_FORCED": NUM_FORCED, "BLOCKS": side(max(num_blocks, geometry.n_sel))}
    few_queries = rows["ROWS"] * sizes["WIDTH_K"] <= _MOST_QUERIES
    reading = rows | {"KEYS": _keys(m), "STAGES": _STAGES if few_queries else 2}
    places = 1 << (geometry.l_sel // geometry.d - 1).bit_length()
    at_once = max(1, _SCORES // (places * side(heads)))
    chunks = 1 if fit_at_once(-(-num_blocks // at_once) * streams, m.q.device) else _CHUNKS
    programs = min(splits_cmp * streams, _num_programs(m.q.device))
    launches = (
        (_read, (programs, tiles, 1),
         (m.q, m.k_cmp, m.v_cmp, m.count, m.scores, m.parts, m.norms, num_cmp, num_parts, streams),
         sizes | reading | stairs | {"FEW": fit_at_once(programs * tiles, m.q.device)}, _READ),
        (_score, (-(-num_blocks // (at_once * chunks)), streams, 1),
         (m.scores, m.norms, m.importance, m.count, num_cmp, num_parts, num_blocks, chunks),
         {"HEADS": heads, "PADDED": side(heads), "SPLITS": side(splits_cmp), "BLOCKS": at_once, "PLACES": places}
         | stairs | blocks, _SCORE),
        (_read_late, (splits_win + splits_sel, streams, tiles),
         (m.q, m.k_win, m.v_win, m.k_sel, m.v_sel, m.count, m.importance, m.slots, m.parts, m.norms, num_win,
          m.capacity, num_blocks, splits_cmp, splits_win, num_parts),
         sizes | reading | blocks | of_slots | choosing | {"SPLIT": SPLIT}, _READ),
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


def _num_programs(device: torch.device) -> int:
    """Programs that read the compressed tokens at once."""
    if device.type != "cuda":
        return _PROGRAMS
    return _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


def _keys(m: StepMemory) -> int:
    """Keys of one product."""
    widths = side(m.k_sel.shape[3]), side(m.v_sel.shape[3])
    return rows_that_fit(_KEYS, m.q.device, *widths, num_stages=_STAGES - 1)


def _sizes(m: StepMemory) -> dict[str, Any]:
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
def _meet(scores, v_tile, peak, total, mixed):
    """Peak, sum and unnormalised output of rows that have met more keys, by scores in powers of two."""
    highest = tl.maximum(peak, tl.max(scores, 1))
    origin = tl.where(highest == float("-inf"), 0.0, highest)  # of a row that has seen no key yet
    weights = tl.exp2(scores - origin[:, None])
    shrink = tl.exp2(peak - origin)
    mixed = tl.dot(weights.to(v_tile.dtype), v_tile, mixed * shrink[:, None])
    return highest, total * shrink + tl.sum(weights, 1), mixed


@triton.jit(do_not_specialize=["num_cmp", "num_parts", "num_streams"])
def _read(
    q, k_cmp, v_cmp, count, scores, parts, norms, num_cmp, num_parts, num_streams, HEADS: tl.constexpr,
    SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, ROWS: tl.constexpr,
    LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    FEW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Splits of the compressed tokens, whose scores are kept too, in one loop: the next one's loads are under way."""
    take_turn(OVERLAPS)
    if FEW:  # programs that wait would take room from many
        pass_turn(OVERLAPS)
    tiles: tl.constexpr = (SPLIT + KEYS - 1) // KEYS
    num_seen = num_compressed(tl.load(count + 1) + 1, LENGTH, STRIDE)
    num_splits = tl.maximum((num_seen + SPLIT - 1) // SPLIT, 1)  # one of no key while there is none
    num_own = (num_splits * num_streams - tl.program_id(0) + tl.num_programs(0) - 1) // tl.num_programs(0)
    row = tl.arange(0, ROWS)
    is_row = tl.program_id(1) * ROWS + row < HEADS
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for turn in tl.range(num_own * tiles, num_stages=STAGES):
        split = tl.program_id(0) + turn // tiles * tl.num_programs(0)
        stream, split = (split // num_splits).to(tl.int64), split % num_splits
        first_row = stream * HEADS + tl.program_id(1) * ROWS
        key = split * SPLIT + turn % tiles * KEYS + tl.arange(0, KEYS)
        is_key = key < tl.minimum(num_seen, split * SPLIT + SPLIT)
        q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
        k_tile = load_rows(k_cmp + stream * num_cmp * SIZE_K, key, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v_cmp + stream * num_cmp * SIZE_V, key, is_key, SIZE_V, WIDTH_V)
        found = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        at = scores + first_row * num_cmp + (row[:, None] * num_cmp + key[None, :])
        tl.store(at, found, mask=is_row[:, None] & is_key[None, :])
        is_first = turn % tiles == 0
        peak, total = tl.where(is_first, float("-inf"), peak), tl.where(is_first, 0.0, total)
        peak, total, mixed = _meet(found, v_tile, peak, total, tl.where(is_first, 0.0, mixed))
        if turn % tiles == tiles - 1:
            _store_part(parts, norms, split, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)
    if not FEW:
        pass_turn(OVERLAPS)


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


@triton.jit(do_not_specialize=["num_cmp", "num_parts", "num_blocks", "num_chunks"])
def _score(
    scores, norms, importance, count, num_cmp, num_parts, num_blocks, num_chunks, HEADS: tl.constexpr,
    PADDED: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, BLOCKS: tl.constexpr, SPLITS: tl.constexpr,
    LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr, PLACES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """What makes the importance of some selection blocks of one row and group, of those that are not forced."""
    num_tokens = tl.load(count + 1) + 1
    take_turn(OVERLAPS)
    pass_turn(OVERLAPS)  # to programs that need not wait for this kernel
    stream, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCKS * num_chunks
    newest = (num_tokens - 1) // L_SEL
    if (newest < NUM_SLOTS) | (first > newest - 2):
        return
    weigh_blocks(
        first, num_chunks, scores + stream * HEADS * num_cmp, norms + stream * HEADS * num_parts * 2,
        importance + stream * 2 * num_blocks, num_compressed(num_tokens, LENGTH, STRIDE), num_cmp, num_parts,
        num_blocks, HEADS, PADDED, L_SEL, LENGTH, STRIDE, SPLIT, SPLITS, BLOCKS, PLACES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_win", "num_sel", "num_blocks", "splits_cmp", "splits_win", "num_parts"])
def _read_late(
    q, k_win, v_win, k_sel, v_sel, count, importance, slots, parts, norms, num_win, num_sel, num_blocks, splits_cmp,
    splits_win, num_parts, HEADS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr,
    SLOTS_EACH: tl.constexpr, NUM_FORCED: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One split of the window, which waits for no kernel, or SLOTS_EACH of the slots of one row and group."""
    num_tokens = tl.load(count + 1) + 1
    part, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first_row = stream * HEADS + tl.program_id(2) * ROWS
    row = tl.arange(0, ROWS)
    is_row = tl.program_id(2) * ROWS + row < HEADS
    q_tile = load_rows(q + first_row * SIZE_K, row, is_row, SIZE_K, WIDTH_K)
    if part < splits_win:  # of no key where there are fewer: in another `if` the loops would not share memory
        begin, stop = part * SPLIT, tl.minimum(tl.minimum(num_tokens, num_win), part * SPLIT + SPLIT)
        peak, total, mixed = _attend_window(
            q_tile, k_win + stream * num_win * SIZE_K, v_win + stream * num_win * SIZE_V, begin, stop, SIZE_K, SIZE_V,
            WIDTH_K, WIDTH_V, ROWS, KEYS, STAGES,
        )  # fmt: skip
        part += splits_cmp
        _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)
    else:
        take_turn(OVERLAPS)
        pass_turn(OVERLAPS)
        first_slot, newest = (part - splits_win) * SLOTS_EACH, (num_tokens - 1) // L_SEL
        if first_slot <= newest:
            is_first = (first_slot == 0) & (tl.program_id(2) == 0)
            slot = choose(
                importance + stream * 2 * num_blocks, slots + stream * NUM_SLOTS, newest, num_blocks, is_first,
                NUM_SLOTS, NUM_FORCED, BLOCKS,
            )  # fmt: skip
            peak, total, mixed = _attend_slots(
                q_tile, k_sel + stream * num_sel * SIZE_K, v_sel + stream * num_sel * SIZE_V, slot, first_slot,
                num_tokens, SIZE_K, SIZE_V, WIDTH_K, WIDTH_V, ROWS, L_SEL, SLOTS_EACH, BLOCKS, KEYS, STAGES,
            )  # fmt: skip
            part += splits_cmp
            _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit
def _attend_window(
    q_tile, k, v, begin, stop, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Peak, sum and unnormalised output over keys begin … stop − 1 of one stream."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for start in tl.range(begin, stop, KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        is_key = key < stop
        k_tile = load_rows(k, key, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, key, is_key, SIZE_V, WIDTH_V)
        found = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        peak, total, mixed = _meet(found, v_tile, peak, total, mixed)
    return peak, total, mixed


@triton.jit
def _attend_slots(
    q_tile, k, v, slot, first_slot, num_tokens, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, ROWS: tl.constexpr, L_SEL: tl.constexpr, SLOTS_EACH: tl.constexpr, BLOCKS: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same over SLOTS_EACH slots: tiles of as many whole slots as fit, or several tiles of a longer one."""
    together: tl.constexpr = KEYS // L_SEL if KEYS > L_SEL else 1
    tiles: tl.constexpr = (L_SEL + KEYS - 1) // KEYS
    every, lane = tl.arange(0, BLOCKS), tl.arange(0, KEYS)
    own = lane // L_SEL if together > 1 else lane * 0
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for turn in tl.range((SLOTS_EACH + together - 1) // together * tiles, num_stages=STAGES):
        block = tl.full([KEYS], -1, tl.int32)
        for index in tl.static_range(together):
            nth = turn // tiles * together + index
            found = tl.max(tl.where((slot == first_slot + nth) & (nth < SLOTS_EACH), every, -1), 0)
            block = tl.where(own == index, found, block)
        within = turn % tiles * KEYS + lane - own * L_SEL
        token = block * L_SEL + within
        is_key = (block >= 0) & (within < L_SEL) & (token < num_tokens)
        k_tile = load_rows(k, token, is_key, SIZE_K, WIDTH_K)
        v_tile = load_rows(v, token, is_key, SIZE_V, WIDTH_V)
        found = tl.where(is_key[None, :], tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K), float("-inf"))
        peak, total, mixed = _meet(found, v_tile, peak, total, mixed)
    return peak, total, mixed


@triton.jit(do_not_specialize=["splits_cmp", "splits_win", "num_parts", "num_win"])
def _merge(
    parts, norms, gates, count, out, splits_cmp, splits_win, num_parts, num_win, HEADS: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr,
    SLOTS_EACH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, SPLIT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The gated mix of one head, or the one branch that counts ALONE; and one token more is held."""
    row, num_tokens = tl.program_id(0).to(tl.int64), tl.load(count + 1) + 1
    take_turn(OVERLAPS)
    parts += row * num_parts * SIZE_V
    norms += row * num_parts * 2
    # Where the parts of each branch end; they begin at 0, splits_cmp and splits_cmp + splits_win.
    end_cmp = (num_compressed(num_tokens, LENGTH, STRIDE) + SPLIT - 1) // SPLIT
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
