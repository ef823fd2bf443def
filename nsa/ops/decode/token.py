"""What one token of every row brings, as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G.

`project` multiplies it by the projections' weights, `add_token` rotates, keeps and weighs what comes of it. Nothing is
added atomically, and a row has the same bits alone and among others.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from nsa.ops.decode.memory import GateParameters, StepMemory
from nsa.ops.kernel_launch import Launch, overlap, pass_turn, take_turn
from nsa.ops.kernel_tiles import LEAST_SIDE, current, load_rows, side, store_rows

# Of one product, and how the kernels are launched; fastest on an H200.
_OUTPUTS, _INPUTS = 32, 128
_PROJECT, _ADD = {"num_warps": 4, "num_stages": 4}, {"num_warps": 4}
_TOKENS, _UNITS = 32, 64  # averaged, and computed of the gate's hidden layer, at once
_MOST_PROJECTED = 64  # rows: of more, torch's own products are faster


def project(memory: StepMemory, x: Tensor, weights: Sequence[Tensor]) -> None:
    """Queries, keys and values of one token x [B, 1, dim] of every row, by weights [out, dim]; for `add_token`.

    Of the queries, and of the keys and the values of the compressed, selected and sliding branch, or of all at once.
    """
    if x.shape[0] > _MOST_PROJECTED or x.dtype != weights[0].dtype or x.dtype != memory.projected.dtype:
        torch.cat([linear(x[:, 0], weight) for weight in weights], dim=-1, out=memory.projected)
        return
    if "project" not in memory.launches:
        memory.launches["project"] = _projecting(memory, x.shape[-1], len(weights) == 7)
    q, *others = weights
    if len(others) == 2:
        others = [others[0]] * 3 + [others[1]] * 3
    with current(x.device):
        memory.launches["project"](x.contiguous(), q, *others)


def add_token(memory: StepMemory, gate: GateParameters, *, averages: bool) -> None:
    """Take what was projected of one token of every row into the memory; it stands behind those held.

    After `attend` it is held itself. averages: a compressed token is the mean of its block, and added where one is
    due; else whoever calls adds it.
    """
    if "add" not in memory.launches:
        memory.launches["add"] = _adding(memory, gate, averages)
    with current(memory.q.device):
        memory.launches["add"](*gate[:4])


def _projecting(m: StepMemory, dim: int, is_apart: bool) -> Launch:
    sizes = _projected_sizes(m) | {
        "DIM": dim,
        "ROWS": LEAST_SIDE,
        "OUTPUTS": _OUTPUTS,
        "INPUTS": _INPUTS,
        "IS_APART": is_apart,
        "OVERLAPS": overlap(m.q.device),
    }
    of_kv = -(-sizes["SIZE_KEYS"] // _OUTPUTS) + -(-sizes["SIZE_VALUES"] // _OUTPUTS)
    tiles = -(-sizes["SIZE_Q"] // _OUTPUTS) + of_kv * (3 if is_apart else 1)
    rows = m.projected.shape[0]
    return Launch(_project, (tiles, -(-rows // LEAST_SIDE), 1), (m.projected, rows), sizes, _PROJECT)


def _projected_sizes(m: StepMemory) -> dict[str, Any]:
    """Where what lies in a row of what is projected."""
    groups = m.k_sel.shape[1]
    return {
        "SIZE_Q": m.q.shape[1] * m.q.shape[2],
        "SIZE_KEYS": groups * m.k_sel.shape[3],
        "SIZE_VALUES": groups * m.v_sel.shape[3],
        "STRIDE_ROW": m.projected.shape[1],
    }


def _adding(m: StepMemory, gate: GateParameters, averages: bool) -> Launch:
    projected = _projected_sizes(m)
    in_one = sum(projected[name] for name in ("SIZE_Q", "SIZE_KEYS", "SIZE_VALUES"))
    size_k, size_v = m.k_sel.shape[3], m.v_sel.shape[3]
    sizes = projected | {
        "HEADS": m.q.shape[1] // m.k_sel.shape[1],
        "SIZE_K": size_k,
        "SIZE_V": size_v,
        "WIDTH_K": side(size_k),
        "WIDTH_V": side(size_v),
        "IS_APART": projected["STRIDE_ROW"] != in_one,
        "GROUPS": m.k_sel.shape[1],
        "LENGTH": m.geometry.l,
        "STRIDE": m.geometry.d,
        "AVERAGES": averages,
        "SOFTMAX": gate.temperature is not None,
        "WEIGHS": gate.alone is None,
        "ROWS": LEAST_SIDE,
        "TOKENS": _TOKENS,
        "UNITS": _UNITS,
        "OVERLAPS": overlap(m.q.device),
    }  # fmt: skip
    args = (
        m.projected, m.frequencies, m.q, m.gates, m.k_cmp, m.k_sel, m.k_win, m.k_new, m.v_cmp, m.v_sel, m.v_win,
        m.v_new, m.count, m.k_cmp.shape[2], m.capacity, m.k_win.shape[2], gate.temperature or 1.0,
    )  # fmt: skip
    return Launch(
        _add_token,
        (m.k_sel.shape[0] * m.k_sel.shape[1], 4, 1),
        args,
        sizes,
        _ADD | {"launch_pdl": overlap(m.q.device)},
    )


@triton.jit(do_not_specialize=["num_rows"])
def _project(
    x, w_q, w_k_cmp, w_k_sel, w_k_win, w_v_cmp, w_v_sel, w_v_win, out, num_rows,
    SIZE_Q: tl.constexpr, SIZE_KEYS: tl.constexpr, SIZE_VALUES: tl.constexpr, STRIDE_ROW: tl.constexpr,
    DIM: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, IS_APART: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """OUTPUTS columns, of one weight, of ROWS rows of all that is projected; IS_APART: keys and values by branch."""
    tiles_q: tl.constexpr = (SIZE_Q + OUTPUTS - 1) // OUTPUTS
    tiles_k: tl.constexpr = (SIZE_KEYS + OUTPUTS - 1) // OUTPUTS
    tiles_v: tl.constexpr = (SIZE_VALUES + OUTPUTS - 1) // OUTPUTS
    num_kv: tl.constexpr = 3 if IS_APART else 1
    take_turn(OVERLAPS)
    tile = tl.program_id(0)
    in_q, in_k = tile < tiles_q, (tile >= tiles_q) & (tile < tiles_q + num_kv * tiles_k)
    tile -= tl.where(in_q, 0, tl.where(in_k, tiles_q, tiles_q + num_kv * tiles_k))
    num_tiles = tl.where(in_q, tiles_q, tl.where(in_k, tiles_k, tiles_v))
    branch, tile = tile // num_tiles, tile % num_tiles
    size = tl.where(in_q, SIZE_Q, tl.where(in_k, SIZE_KEYS, SIZE_VALUES))
    first_kv = tl.where(in_k, branch * SIZE_KEYS, num_kv * SIZE_KEYS + branch * SIZE_VALUES)
    first = tl.where(in_q, 0, SIZE_Q + first_kv)
    w = w_q
    if in_k:
        w = w_k_cmp
        if branch == 1:
            w = w_k_sel
        if branch == 2:
            w = w_k_win
    elif not in_q:
        w = w_v_cmp
        if branch == 1:
            w = w_v_sel
        if branch == 2:
            w = w_v_win
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.arange(0, INPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, DIM, INPUTS):
        is_input = start + column < DIM
        at = row[:, None] * DIM + start + column[None, :]
        x_tile = tl.load(x + at, mask=(row < num_rows)[:, None] & is_input[None, :], other=0.0)
        at = output.to(tl.int64)[:, None] * DIM + start + column[None, :]
        w_tile = tl.load(w + at, mask=(output < size)[:, None] & is_input[None, :], other=0.0)
        total = tl.dot(x_tile, tl.trans(w_tile), total)
    pass_turn(OVERLAPS)
    at = row[:, None] * STRIDE_ROW + first + output[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < num_rows)[:, None] & (output < size)[None, :])


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
    w1, b1, w2, b2, projected, frequencies, turned_q, gates, keys_cmp, keys_sel, keys_win, keys_new, values_cmp,
    values_sel, values_win, values_new, count, num_cmp, num_sel, num_win, temperature,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr, SIZE_Q: tl.constexpr, SIZE_KEYS: tl.constexpr, SIZE_VALUES: tl.constexpr,
    STRIDE_ROW: tl.constexpr, IS_APART: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr,
    AVERAGES: tl.constexpr, SOFTMAX: tl.constexpr, WEIGHS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    UNITS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One part of what a token brings to one row and group: its queries, its gates, its keys or its values."""
    take_turn(OVERLAPS)
    stream, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, group = stream // GROUPS, stream % GROUPS
    position = tl.load(count)
    projected += batch * STRIDE_ROW
    q = projected + group * HEADS * SIZE_K
    row, is_row = tl.zeros([1], tl.int32), tl.full([1], 1, tl.int1)
    if (part == 0) | (part == 2):
        pair = tl.arange(0, WIDTH_K // 2)
        angle = position.to(tl.float64) * tl.load(frequencies + pair, mask=pair < SIZE_K // 2, other=0.0)
        cos, sin = tl.cos(angle).to(tl.float32), tl.sin(angle).to(tl.float32)
        if part == 0:
            if stream == 0:
                tl.store(count + 1, position)
            for start in range(0, HEADS, ROWS):
                head = start + tl.arange(0, ROWS)
                turned = _turned(q, head, head < HEADS, cos, sin, SIZE_K, WIDTH_K)
                store_rows(turned_q + stream * HEADS * SIZE_K, head, head < HEADS, turned, SIZE_K, WIDTH_K)
        else:
            k = projected + SIZE_Q + group * SIZE_K
            next_k: tl.constexpr = SIZE_KEYS if IS_APART else 0
            _keep(
                keys_cmp, keys_sel, keys_win, keys_new, stream, position, num_cmp, num_sel, num_win,
                _turned(k, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                _turned(k + next_k, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                _turned(k + 2 * next_k, row, is_row, cos, sin, SIZE_K, WIDTH_K),
                SIZE_K, WIDTH_K, LENGTH, STRIDE, AVERAGES, TOKENS,
            )  # fmt: skip
    elif part == 1:
        if WEIGHS:
            _gate(q, w1, b1, w2, b2, gates + stream * 3, temperature, HEADS, SIZE_K, WIDTH_K, SOFTMAX, ROWS, UNITS)
    else:
        v = projected + SIZE_Q + (3 if IS_APART else 1) * SIZE_KEYS + group * SIZE_V
        next_v: tl.constexpr = SIZE_VALUES if IS_APART else 0
        _keep(
            values_cmp, values_sel, values_win, values_new, stream, position, num_cmp, num_sel, num_win,
            load_rows(v, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v + next_v, row, is_row, SIZE_V, WIDTH_V),
            load_rows(v + 2 * next_v, row, is_row, SIZE_V, WIDTH_V),
            SIZE_V, WIDTH_V, LENGTH, STRIDE, AVERAGES, TOKENS,
        )  # fmt: skip
    pass_turn(OVERLAPS)
