"""What the Triton kernels of the branches share; pointers are named as the tensors they point to.

Layouts: q [B, T, G·h, Dk]; out and grad [B, T, G·h, Dv]; norm [B, T, G·h, 2] as `nsa.ops.tiles.normaliser` has it;
terms [B, T, G·h, 4], what the gradients of keys take of each row: see `make_terms`. A program adds where its own batch
row begins to the pointers, in int64. Within a batch row offsets are int32, which halves the registers of addresses,
and int64 where a row holds 2^31 elements or more (WIDE).
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nsa.ops.tiles import LOG2_E

LEAST_SIDE = 16  # of a matrix product
SMALL = 64  # head size up to which tiles are larger, or have fewer warps
_MOST_OFFSETS = 2**31 - 1
_OVERLAPPED, _ROWS_OVERLAPPED = 128, 64  # channels of heads, and rows of tiles, of the kernels for Hopper GPUs
_LOG2_E = tl.constexpr(LOG2_E)
_PARTS_RANKED, _MOST_ABOVE = tl.constexpr(64), tl.constexpr(6)  # of a row of which the highest are looked for
_OF_NO_ROW = tl.constexpr(1e30)  # finite, for it is multiplied by zero


class Sight(NamedTuple):
    """Which keys the first num_served queries see; the first of them stands at first_query.

    The last `window` keys, their own included; or, of compressed blocks `length` long and `stride` apart, those that
    end at or before them.
    """

    first_query: int
    num_served: int
    window: int = 0
    length: int = 0
    stride: int = 0


def side(size: int) -> int:
    """The side of a tile that holds `size`: a power of two."""
    return max(LEAST_SIDE, 1 << (size - 1).bit_length())


def is_wide(*tensors: Tensor) -> bool:
    """Whether a batch row of one of these holds more elements than int32 offsets reach."""
    return any(x[:1].numel() > _MOST_OFFSETS for x in tensors)


def rows_that_fit(most: int, device: torch.device, *widths: int, num_stages: int) -> int:
    """Rows of a tile, a power of two and at most `most`, whose loads fill no more than half of the shared memory.

    widths: of the half-precision tensors that are loaded at every step of a loop, num_stages of them in flight.
    """
    if device.type != "cuda":
        return most
    room, rows = _shared_memory(device) // 2, most
    while rows > LEAST_SIDE and rows * sum(widths) * num_stages * 2 > room:
        rows //= 2
    return rows


@cache  # asking takes several microseconds, and a layer asks ten times
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have."""
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


def products_overlap(*tensors: Tensor) -> bool:
    """Whether the kernels of `nsa.ops.hopper` serve these contiguous q, k and v: of 128 channels, on a Hopper GPU."""
    is_served = all(x.shape[-1] == _OVERLAPPED and x.numel() and x.data_ptr() % 16 == 0 for x in tensors)
    return is_served and _is_hopper(tensors[0].device)


def queries_fit(heads: int) -> bool:
    """Whether the tiles in which those kernels load queries hold the heads, so many a group, of whole queries."""
    return heads & (heads - 1) == 0 and heads <= _ROWS_OVERLAPPED


@cache
def _is_hopper(device: torch.device) -> bool:
    """Whether it is a Hopper GPU, and Triton the one whose Gluon these kernels are written in."""
    is_known = device.type == "cuda" and triton.__version__.startswith("3.6.")
    return is_known and torch.cuda.get_device_capability(device)[0] == 9


def tiles_of(x: Tensor, rows: int, width: int) -> Any:
    """`x` [B, S, G, D] as the copy engine of a Hopper GPU loads it, tiles of `rows` tokens of one stream.

    `x` itself where that engine cannot: on other GPUs, for D that is no multiple of 16 bytes, of an empty tensor.
    """
    has_engine = not x.is_cuda or torch.cuda.get_device_capability(x.device) >= (9, 0)  # the interpreter imitates it
    is_aligned = x.data_ptr() % 16 == 0 and x.shape[-1] * x.element_size() % 16 == 0
    if not (has_engine and is_aligned and x.numel()):
        return x
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows, 1, width])


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@triton.jit
def factor(SIZE_K: tl.constexpr):
    """What makes a product of q and k a score in powers of two."""
    return _LOG2_E / SIZE_K**0.5


@triton.jit
def scale(SIZE_K: tl.constexpr):
    """What makes the gradient of a score one of a product of q and k."""
    return 1 / SIZE_K**0.5


@triton.jit
def index(x, WIDE: tl.constexpr):
    """`x` in the integers that offsets within a batch row are computed in."""
    return x.to(tl.int64) if WIDE else x.to(tl.int32)


@triton.jit
def stream_of(num_streams, GROUPS: tl.constexpr):
    """The program's row and group, and which of their tiles it has."""
    program = tl.program_id(0)
    stream = (program % num_streams).to(tl.int64)
    return stream // GROUPS, stream % GROUPS, program // num_streams


@triton.jit
def rows_from(start, HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr):
    """The queries of the (query, head) pairs start, start + 1 …; the row of the first query; the pairs' rows after it.

    start: a multiple of ROWS from a query's first head.
    """
    pair = tl.arange(0, ROWS)
    if ROWS % HEADS:
        pair += start % HEADS
    first = start // HEADS * tl.full([], GROUPS * HEADS, tl.int64)
    return start // HEADS + pair // HEADS, first, pair // HEADS * (GROUPS * HEADS) + pair % HEADS


@triton.jit
def load_rows(x, row, is_row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of `x` [..., SIZE], filled up with zeros to WIDTH columns; zeros where `is_row` is false."""
    column = tl.arange(0, WIDTH)
    mask = is_row[:, None] if SIZE == WIDTH else is_row[:, None] & (column < SIZE)[None, :]
    return tl.load(x + (row[:, None] * SIZE + column), mask=mask, other=0.0)


@triton.jit
def load_keys(
    x, tiles, batch, group, start, stop, num_keys, GROUPS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    KEYS: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Keys start, start + 1 … of one stream of `x` [B, num_keys, G, SIZE]; zeros from `stop` on, unless TILED.

    TILED: `tiles` are what `tiles_of` makes of `x`; zeros from num_keys on.
    """
    if TILED:
        found = tl.reshape(tiles.load([batch.to(tl.int32), start, group.to(tl.int32), 0]), [KEYS, WIDTH])
    else:
        key = tl.arange(0, KEYS)
        first = ((batch * num_keys + start) * GROUPS + group) * SIZE
        found = load_rows(x + first, key * GROUPS, start + key < stop, SIZE, WIDTH)
    return found


@triton.jit
def store_rows(x, row, is_row, values, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The inverse of `load_rows`, rounded to the dtype of `x`."""
    column = tl.arange(0, WIDTH)
    mask = is_row[:, None] if SIZE == WIDTH else is_row[:, None] & (column < SIZE)[None, :]
    tl.store(x + (row[:, None] * SIZE + column), values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def attend_tile(
    q_tile, k_tile, v_tile, is_visible, peak, total, mixed, SIZE_K: tl.constexpr, is_masked=True
):  # fmt: skip
    """Peak, sum and unnormalised output of rows that have met the keys of one tile more; is_visible [rows, keys].

    A tile gives a row the same bits whether is_masked or not, so that rows beside it change nothing.
    """
    scores = tl.dot(q_tile, tl.trans(k_tile))
    if is_masked:
        scores = tl.where(is_visible, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1) * factor(SIZE_K))
    origin = tl.where(highest == float("-inf"), 0.0, highest)  # of a row that has seen no key yet
    weights = tl.exp2(scores * factor(SIZE_K) - origin[:, None])
    shrink = tl.exp2(peak - origin)
    mixed = tl.dot(weights.to(v_tile.dtype), v_tile, mixed * shrink[:, None])
    return highest, total * shrink + tl.sum(weights, 1), mixed


@triton.jit
def finish_rows(
    out, norm, row, is_row, peak, total, mixed, SIZE_V: tl.constexpr, WIDTH_V: tl.constexpr
):  # fmt: skip
    """Write output and normaliser; a row that saw no key has output and normaliser zero."""
    sees_none = total == 0
    total = tl.where(sees_none, 1.0, total)
    store_rows(out, row, is_row, mixed * (1 / total)[:, None], SIZE_V, WIDTH_V)
    tl.store(norm + row * 2, tl.where(sees_none, 0.0, peak), mask=is_row)
    tl.store(norm + row * 2 + 1, tl.log2(total), mask=is_row)


@triton.jit
def load_norm(norm, row, is_row):
    """Peak and log2 of the sum; a row that is none has the peak +inf, so that its probabilities are zero."""
    peak = tl.load(norm + row * 2, mask=is_row, other=float("inf"))
    return peak, tl.load(norm + row * 2 + 1, mask=is_row, other=0.0)


@triton.jit
def make_terms(terms, norm, row, is_row, position, grad_tile, out_tile, ROWS: tl.constexpr):
    """Peak, log2 of the sum, and delta = Σ grad · output over Dv; for the kernel that follows written beside position.

    As one tile: numbers of which a thread takes a whole row are loaded ahead, and once, not by every thread that needs
    one of them.
    """
    peak, log_total = load_norm(norm, row, is_row)
    delta = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    bits = (tl.zeros([ROWS], tl.int32) + position).to(tl.float32, bitcast=True)
    tile = tl.reshape(tl.join(tl.join(peak, delta), tl.join(log_total, bits)), [ROWS, 4])
    tl.store(terms + (row[:, None] * 4 + tl.arange(0, 4)[None, :]), tile, mask=is_row[:, None])
    return peak, log_total, delta


@triton.jit
def load_terms(terms, row, is_row, ROWS: tl.constexpr, AS_TILE: tl.constexpr = True):
    """The same of rows, and their positions; a row that is none has a peak so high that its probabilities are zero."""
    if AS_TILE:
        at = terms + (row[:, None] * 4 + tl.arange(0, 4)[None, :])
        tile = tl.load(at, mask=is_row[:, None], other=_OF_NO_ROW)
        first, second = tl.split(tl.reshape(tile, [ROWS, 2, 2]))
        peak, delta = tl.split(first)
        log_total, bits = tl.split(second)
    else:
        at = terms + row * 4
        peak = tl.load(at, mask=is_row, other=_OF_NO_ROW)
        log_total = tl.load(at + 1, mask=is_row, other=0.0)
        delta = tl.load(at + 2, mask=is_row, other=0.0)
        bits = tl.load(at + 3, mask=is_row, other=0.0)
    return peak, log_total, delta, bits.to(tl.int32, bitcast=True)


@triton.jit
def weights_of(q_tile, k_tile, peak, log_total, SIZE_K: tl.constexpr):
    """Probabilities [rows, keys] of what was normalised before; a key that a row does not see may have any."""
    return tl.exp2(tl.dot(q_tile, tl.trans(k_tile)) * factor(SIZE_K) - (peak + log_total)[:, None])


@triton.jit
def add_grad_q(
    sum_q, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K: tl.constexpr, is_masked=True
):  # fmt: skip
    """Gradient of the rows' q, not scaled yet, with the part of one tile of keys added; is_visible [rows, keys]."""
    weights = weights_of(q_tile, k_tile, peak, log_total, SIZE_K)
    if is_masked:
        weights = tl.where(is_visible, weights, 0.0)
    grad_scores = weights * (tl.dot(grad_tile, tl.trans(v_tile)) - delta[:, None])
    return tl.dot(grad_scores.to(k_tile.dtype), k_tile, sum_q)


@triton.jit
def add_grad_kv(
    sum_k, sum_v, q_tile, k_tile, v_tile, grad_tile, is_visible, peak, log_total, delta, SIZE_K: tl.constexpr,
    is_masked=True,
):  # fmt: skip
    """Gradients of the keys (not scaled yet) and values, with the part of one tile of rows; is_visible [keys, rows].

    And the gradient of the scores [keys, rows], rounded as its products take it. A row that is none adds nothing,
    is_masked or not: see `load_terms`.
    """
    weights = tl.exp2(tl.dot(k_tile, tl.trans(q_tile)) * factor(SIZE_K) - (peak + log_total)[None, :])
    if is_masked:
        weights = tl.where(is_visible, weights, 0.0)
    sum_v = tl.dot(weights.to(grad_tile.dtype), grad_tile, sum_v)
    grad_scores = (weights * (tl.dot(v_tile, tl.trans(grad_tile)) - delta[None, :])).to(q_tile.dtype)
    return tl.dot(grad_scores, q_tile, sum_k), sum_v, grad_scores


@triton.jit
def best_ranked(rank, num):
    """Which are the `num` highest of `rank`; ties go to the lower index, and −1 is never among them."""
    least = _least_of_best(rank, num)
    is_best = (rank >= least) & (rank >= 0) & (num > 0)
    if tl.sum(is_best.to(tl.int32), 0) != num:  # equal ranks are among them, and counted as one so far
        least = tl.max(rank, 0) + 1
        found = 0
        for _ in range(num):
            lower = tl.max(tl.where(rank < least, rank, -1), 0)
            least = tl.where(found < num, lower, least)
            found = tl.sum((rank >= least).to(tl.int32), 0)
        is_last = rank == least
        room = num - tl.sum((rank > least).to(tl.int32), 0)
        is_best = (rank > least) | (is_last & (tl.cumsum(is_last.to(tl.int32), 0) <= room))
    return is_best


@triton.jit
def _least_of_best(rank, num):
    """The lowest of the `num` highest of `rank`, where none are equal.

    Of many, first the lowest of the highest of as many parts: few are above it that are not among them.
    """
    if rank.shape[0] > _PARTS_RANKED:
        highest = tl.max(tl.reshape(rank, [rank.shape[0] // _PARTS_RANKED, _PARTS_RANKED]), 0)
        num_higher = tl.sum((highest[None, :] > highest[:, None]).to(tl.int32), 1)
        least = tl.min(tl.where(num_higher < num, highest, 0x7FFFFFFF), 0)
        num_above = tl.sum((rank >= least).to(tl.int32), 0) - num
        if (num_above > _MOST_ABOVE) | (least < 0):
            least = _nth_highest(rank, num)
        else:
            for _ in range(num_above):
                least = tl.min(tl.where(rank > least, rank, 0x7FFFFFFF), 0)
    else:
        least = _nth_highest(rank, num)
    return least


@triton.jit
def _nth_highest(rank, num):
    """The same, one highest after the other."""
    least = tl.max(rank, 0) + 1
    for _ in range(num):
        least = tl.max(tl.where(rank < least, rank, -1), 0)
    return least
