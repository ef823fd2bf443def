"""One token of every row as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk.

`add_token` rotates, keeps and weighs what a token brings; `attend` is its attention in four launches: the splits of
the compressed tokens and of the window, the choice of blocks, the splits of the chosen blocks, all parts merged.
Every kernel reads the length on the device and what it does not reach ends at once: the launches of every step are the
same. A split holds as many keys whatever the rows and merges come in one order: the same inputs give the same bits, a
row alone and among others too. Nothing is added atomically.
"""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.decode.memory import SPLIT, GateParameters, StepMemory
from nsa.ops.geometry import NUM_FORCED
from nsa.ops.kernel_tiles import best_ranked, current, factor, load_rows, rows_that_fit, side, store_rows

# Of one product, and how the kernels are launched; fastest on an H200.
_MOST_ROWS, _KEYS, _SELECTED_KEYS = 64, 64, 128
_READ, _READ_SELECTED = {"num_warps": 4, "num_stages": 2}, {"num_warps": 4, "num_stages": 1}
_ADD, _MERGE = {"num_warps": 4}, {"num_warps": 4}
_SCORES, _SCORES_PER_WARP, _MOST_WARPS = 1 << 15, 1 << 10, 32  # summed at once by the program that chooses
_PARTS = 32  # merged at once
_TOKENS, _UNITS = 32, 64  # averaged, and computed of the gate's hidden layer, at once
_ALIGNED = 16  # bytes, as compiled kernels expect of every pointer


class _Launch:
    """A kernel on a grid, its last arguments the same every time.

    The first call compiles it; those that follow skip what Triton finds out of the arguments each time, which would
    take longer than the kernel.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        args: Sequence[Any],
        sizes: dict[str, Any],
        options: dict[str, int],
    ) -> None:
        self._kernel, self._grid, self._args, self._sizes, self._options = kernel, grid, args, sizes, options
        self._again: Any = None
        self._rest: tuple[Any, ...] = ()

    def __call__(self, *varying: Tensor) -> None:
        addresses = [x.data_ptr() for x in varying]
        if self._again is not None and not any(address % _ALIGNED for address in addresses):
            self._again(*addresses, *self._rest)
            return
        compiled = self._kernel[self._grid](*varying, *self._args, **self._sizes, **self._options)
        if compiled is not None and not any(address % _ALIGNED for address in addresses):  # else it is interpreted
            self._again = compiled[self._grid]
            fixed = [x.data_ptr() if isinstance(x, Tensor) else x for x in self._args]
            names = self._kernel.arg_names[len(varying) + len(fixed) :]
            self._rest = (*fixed, *(self._sizes[name] for name in names))


def add_token(
    memory: StepMemory, q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], gate: GateParameters,
    *, averages: bool,
) -> None:  # fmt: skip
    """Take one token of every row into the memory; it stands behind those held, and is held after `attend`.

    q [B, 1, H·Dk], keys of the compressed, selected and sliding branch [B, 1, G·Dk] each, values [B, 1, G·Dv], before
    rotation. averages: a compressed token is the mean of its block, and added where one is due; else whoever calls
    adds it.
    """
    launches = memory.launches
    if "add" not in launches:
        launches["add"] = _adding(memory, gate, averages)
    with current(q.device):
        launches["add"](q, *keys, *values, *gate[:4])


def attend(memory: StepMemory, gate: GateParameters) -> Tensor:
    """The gated mix [B, 1, H·Dv] of the branches for the token that `add_token` took in; written over by the next."""
    launches = memory.launches
    if "attend" not in launches:
        launches["attend"] = _attending(memory, -1 if gate.alone is None else gate.alone)
    with current(memory.q.device):
        for launch in launches["attend"]:
            launch()
    return memory.out


def _adding(m: StepMemory, gate: GateParameters, averages: bool) -> _Launch:
    sizes = _sizes(m) | {
        "GROUPS": m.k_sel.shape[1],
        "LENGTH": m.geometry.l,
        "STRIDE": m.geometry.d,
        "AVERAGES": averages,
        "SOFTMAX": gate.temperature is not None,
        "WEIGHS": gate.alone is None,
        "ROWS": 16,
        "TOKENS": _TOKENS,
        "UNITS": _UNITS,
    }
    args = (
        m.frequencies, m.q, m.gates, m.k_cmp, m.k_sel, m.k_win, m.k_new, m.v_cmp, m.v_sel, m.v_win, m.v_new, m.count,
        m.k_cmp.shape[2], m.capacity, m.k_win.shape[2], gate.temperature or 1.0,
    )  # fmt: skip
    return _Launch(_add_token, (_num_streams(m), 4, 1), args, sizes, _ADD)


def _attending(m: StepMemory, alone: int) -> list[_Launch]:
    """The four launches of a step's attention."""
    geometry, sizes, streams = m.geometry, _sizes(m), _num_streams(m)
    heads, num_cmp, num_win, num_parts = sizes["HEADS"], m.k_cmp.shape[2], m.k_win.shape[2], m.parts.shape[2]
    splits_cmp, splits_win, _ = m.num_splits
    rows = {"ROWS": min(_MOST_ROWS, side(heads))}
    tiles = -(-heads // rows["ROWS"])
    stairs = {"LENGTH": geometry.l, "STRIDE": geometry.d, "SPLIT": SPLIT}
    blocks = {"L_SEL": geometry.l_sel, "NUM_SLOTS": geometry.n_sel}
    widths = sizes["WIDTH_K"], sizes["WIDTH_V"]
    keys = rows_that_fit(_KEYS, m.q.device, *widths, num_stages=_READ["num_stages"])
    selected_keys = rows_that_fit(_SELECTED_KEYS, m.q.device, *widths, num_stages=1)
    slots_each = max(1, min(selected_keys // geometry.l_sel, geometry.n_sel))
    splits_sel, of_slots = -(-geometry.n_sel // slots_each), {"SLOTS_EACH": slots_each}
    padded = side(splits_cmp + splits_win + splits_sel)
    choosing, warps = _choosing(m)
    reading = _Launch(
        _read, (splits_cmp + splits_win, streams, tiles),
        (m.q, m.k_cmp, m.v_cmp, m.k_win, m.v_win, m.count, m.scores, m.parts, m.norms, num_cmp, num_win, splits_cmp,
         num_parts),
        sizes | rows | stairs | {"KEYS": keys}, _READ,
    )  # fmt: skip
    choosing_slots = _Launch(
        _choose, (streams, 1, 1), (m.scores, m.norms, m.summed, m.slots, m.count, num_cmp, num_parts),
        {"HEADS": heads} | stairs | blocks | choosing, warps,
    )  # fmt: skip
    reading_selected = _Launch(
        _read_selected, (splits_sel, streams, tiles),
        (m.q, m.k_sel, m.v_sel, m.count, m.slots, m.parts, m.norms, m.capacity, splits_cmp + splits_win, num_parts),
        sizes | rows | blocks | of_slots | {"KEYS": selected_keys}, _READ_SELECTED,
    )  # fmt: skip
    merging = _Launch(
        _merge, (streams * heads, 1, 1),
        (m.parts, m.norms, m.gates, m.count, m.out, splits_cmp, splits_win, num_parts, num_win),
        {name: sizes[name] for name in ("HEADS", "SIZE_V", "WIDTH_V")} | stairs | blocks | of_slots
        | {"PADDED": padded, "PARTS": min(_PARTS, padded), "ALONE": alone}, _MERGE,
    )  # fmt: skip
    return [reading, choosing_slots, reading_selected, merging]


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


def _choosing(m: StepMemory) -> tuple[dict[str, int], dict[str, int]]:
    """What the kernel that chooses is compiled for, and its warps: as many as its tiles of scores fill."""
    geometry, padded = m.geometry, side(m.q.shape[1] // m.k_sel.shape[1])
    num_keys = max(64, min(side(m.k_cmp.shape[2]), _SCORES // padded))
    return {
        "PADDED": padded,
        "KEYS": num_keys,
        "PARTS": side(m.num_splits[0]),
        "NUM_FORCED": NUM_FORCED,
        "BLOCKS": side(max(geometry.num_blocks(m.capacity), geometry.n_sel)),
    }, {"num_warps": max(4, min(_MOST_WARPS, padded * num_keys // _SCORES_PER_WARP))}


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
    AVERAGES: tl.constexpr, TOKENS: tl.constexpr,
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
        for start in range(0, LENGTH, TOKENS):
            slot = start + tl.arange(0, TOKENS)
            tile = load_rows(ring, slot, (slot < LENGTH) & (slot != own), SIZE, WIDTH)
            total += tl.sum(tile.to(tl.float32), 0)
        at = stream * num_cmp + (position + 1 - LENGTH) // STRIDE
        store_rows(memory_cmp + at * SIZE, row, is_row, (total / LENGTH)[None, :], SIZE, WIDTH)
    store_rows(ring + own * SIZE, row, is_row, kept, SIZE, WIDTH)


@triton.jit
def _gate(
    q, w1, b1, w2, b2, gates, temperature, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    SOFTMAX: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """The weights of the branches by the mean of a group's queries."""
    mean = tl.zeros([WIDTH], tl.float32)
    for start in range(0, HEADS, ROWS):
        row = start + tl.arange(0, ROWS)
        mean += tl.sum(load_rows(q, row, row < HEADS, SIZE, WIDTH).to(tl.float32), 0)
    mean = mean / HEADS
    branch = tl.arange(0, 4)
    logits = tl.load(b2 + branch, mask=branch < 3, other=0.0).to(tl.float32)
    for start in range(0, SIZE, UNITS):
        unit = start + tl.arange(0, UNITS)
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
    WEIGHS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, UNITS: tl.constexpr,
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
                SIZE_K, WIDTH_K, LENGTH, STRIDE, AVERAGES, TOKENS,
            )  # fmt: skip
    elif part == 1:
        if WEIGHS:
            _gate(
                q + stream * HEADS * SIZE_K, w1, b1, w2, b2, gates + stream * 3, temperature, HEADS, SIZE_K, WIDTH_K,
                SOFTMAX, ROWS, UNITS,
            )  # fmt: skip
    else:
        row, is_row = tl.zeros([1], tl.int32), tl.full([1], 1, tl.int1)
        _keep(
            values_cmp, values_sel, values_win, values_new, stream, position, num_cmp, num_sel, num_win,
            load_rows(v_cmp + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v_sel + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v_win + stream * SIZE_V, row, is_row, SIZE_V, WIDTH_V),
            SIZE_V, WIDTH_V, LENGTH, STRIDE, AVERAGES, TOKENS,
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


@triton.jit(do_not_specialize=["num_cmp", "num_parts"])
def _choose(
    scores, norms, summed, slots, count, num_cmp, num_parts, HEADS: tl.constexpr, PADDED: tl.constexpr,
    L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, NUM_FORCED: tl.constexpr, BLOCKS: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The slots of one row and group (Eq. 9 to 11), by the scores of its compressed tokens."""
    stream = tl.program_id(0).to(tl.int64)
    num_tokens = tl.load(count + 1) + 1
    newest = (num_tokens - 1) // L_SEL
    block = tl.arange(0, BLOCKS)
    chosen = (block <= newest) & ((block == 0) | (block >= newest - 1) | (newest < NUM_SLOTS))
    # Where slots are fewer than blocks, the rest goes by rank.
    rank = tl.full([BLOCKS], -1, tl.int32)
    num_ranked = 0
    if newest >= NUM_SLOTS:
        num_seen = _num_compressed(num_tokens, LENGTH, STRIDE)
        peak, log_total = _normaliser(
            norms + stream * HEADS * num_parts * 2, (num_seen + SPLIT - 1) // SPLIT, num_parts, HEADS, PADDED, PARTS
        )
        summed += stream * num_cmp
        _sum_heads(scores + stream * HEADS * num_cmp, summed, peak, log_total, num_seen, num_cmp, HEADS, PADDED, KEYS)
        tl.debug_barrier()  # written by other threads
        importance = tl.zeros([BLOCKS], tl.float32)
        per_compressed: tl.constexpr = LENGTH // STRIDE
        per_block: tl.constexpr = L_SEL // STRIDE
        for place in range(1 - per_compressed, per_block):
            key = block * per_block + place
            shared = tl.minimum(place + per_compressed, per_block) - tl.maximum(place, 0)  # strides
            importance += shared * tl.load(summed + key, mask=(key >= 0) & (key < num_seen), other=0.0)
        # What is not above zero, NaN too, ranks as zero; floats that are not negative order as their bits do.
        rank = tl.where(importance > 0, importance, 0.0).to(tl.int32, bitcast=True)
        rank = tl.where((block > 0) & (block < newest - 1), rank, -1)
        num_ranked = NUM_SLOTS - NUM_FORCED
    chosen = chosen | best_ranked(rank, num_ranked)
    slots += stream * NUM_SLOTS
    tl.store(slots + tl.cumsum(chosen.to(tl.int32), 0) - 1, block, mask=chosen)
    tl.store(slots + block, tl.full([BLOCKS], -1, tl.int32), mask=(block > newest) & (block < NUM_SLOTS))


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


@triton.jit
def _sum_heads(
    scores, summed, peak, log_total, num_seen, num_cmp, HEADS: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Write the probability of each compressed token, summed over the heads of a group."""
    head = tl.arange(0, PADDED)
    for start in range(0, num_seen, KEYS):
        key = start + tl.arange(0, KEYS)
        is_score = (head < HEADS)[:, None] & (key < num_seen)[None, :]
        score = tl.load(scores + head[:, None] * num_cmp + key[None, :], mask=is_score, other=float("-inf"))
        weights = tl.where(is_score, tl.exp2(score - peak[:, None] - log_total[:, None]), 0.0)
        tl.store(summed + key, tl.sum(weights, 0), mask=key < num_seen)


@triton.jit(do_not_specialize=["num_sel", "first_part", "num_parts"])
def _read_selected(
    q, k_sel, v_sel, count, slots, parts, norms, num_sel, first_part, num_parts,
    HEADS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOTS_EACH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """SLOTS_EACH of the slots of one row and group, in one tile of keys, or one slot that is longer than a tile."""
    stream = tl.program_id(1).to(tl.int64)
    position = tl.load(count + 1)
    first_slot = tl.program_id(0) * SLOTS_EACH
    if first_slot > position // L_SEL:
        return
    lane = tl.arange(0, KEYS)
    own = lane // L_SEL if SLOTS_EACH > 1 else lane * 0
    is_own = (own < SLOTS_EACH) & (first_slot + own < NUM_SLOTS)
    block = tl.load(slots + stream * NUM_SLOTS + first_slot + own, mask=is_own, other=-1)
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
    part = first_part + tl.program_id(0)
    _store_part(parts, norms, part, num_parts, first_row, row, is_row, peak, total, mixed, SIZE_V, WIDTH_V)


@triton.jit(do_not_specialize=["splits_cmp", "splits_win", "num_parts", "num_win"])
def _merge(
    parts, norms, gates, count, out, splits_cmp, splits_win, num_parts, num_win, HEADS: tl.constexpr,
    SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr, L_SEL: tl.constexpr, NUM_SLOTS: tl.constexpr,
    SLOTS_EACH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, ALONE: tl.constexpr, LENGTH: tl.constexpr,
    STRIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The gated mix of one head, or the one branch that counts ALONE; and one token more is held."""
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
