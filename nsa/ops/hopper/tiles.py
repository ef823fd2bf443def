"""What the kernels for Hopper GPUs share: tensors as the copy engine loads them, and parts of kernels.

They are written in Gluon, the language below Triton's, which lets a program go on while its matrix products run:
Triton has it wait for each. Where they serve, `nsa.ops.kernel_tiles.products_overlap` says. Their outputs have the
bits of the Triton kernels, which serve everything else.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nsa.ops.tiles import LOG2_E

KEYS = 64  # of one tile
IN_POWERS_OF_TWO = gl.constexpr(LOG2_E)  # what makes scores powers of two


class Tiles(NamedTuple):
    """A tensor as the copy engine loads it: what Triton takes of a descriptor once a kernel is compiled."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    box: list[int]
    padding: str = "zero"

    def described(self) -> Any:
        """What Triton compiles for, which takes as long as a short kernel to make and to look at."""
        layout = gl.NVMMASharedLayout(128, 16, len(self.box))
        return TensorDescriptor(self.base, self.shape, self.strides, self.box, layout)


def tiles_of(x: Tensor, rows: int) -> Tiles:
    """`x` [B, S, G, D] as tiles of `rows` tokens of one group; they end where the last row does."""
    num_rows, num_groups, size = x.shape[0] * x.shape[1], *x.shape[2:]
    return Tiles(x, [num_rows, num_groups * size], [num_groups * size, 1], [rows, size])


def tiles_of_queries(x: Tensor, num_served: int, heads: int, rows: int) -> Tiles:
    """`x` [B, T, H, D] as tiles of `rows` heads of neighbouring queries of one group; zeros from num_served on."""
    shape, box = [x.shape[0], num_served, *x.shape[2:]], [1, rows // heads, heads, x.shape[3]]
    return Tiles(x, shape, list(x.stride()), box)


class Compiled:
    """A kernel for tensors of one kind, which is launched again without what Triton finds out of them each time."""

    def __init__(self, kernel: Any, constants: tuple[tuple[str, Any], ...], num_warps: int) -> None:
        self._kernel, self._constants, self._num_warps = kernel, dict(constants), num_warps
        self._again: Any = None
        self._rest: tuple[Any, ...] = ()

    def __call__(self, grid: tuple[int, int, int], args: Sequence[Any], *, is_aligned: bool) -> None:
        """is_aligned: whether every tensor begins at a multiple of 16 bytes, as what is launched again expects."""
        if is_aligned and self._again is not None:
            self._again[grid](*args, *self._rest)
            return
        described = [x.described() if isinstance(x, Tiles) else x for x in args]
        compiled = self._kernel[grid](*described, **self._constants, num_warps=self._num_warps)
        if is_aligned:
            self._again = compiled
            self._rest = tuple(self._constants[name] for name in self._kernel.arg_names[len(args) :])


@cache
def _compiled(
    kernel: Any,
    constants: tuple[tuple[str, Any], ...],
    num_warps: int,
    _dtypes: tuple[torch.dtype, ...],
    _device: torch.device,
) -> Compiled:
    return Compiled(kernel, constants, num_warps)


def launch(
    kernel: Any, grid: tuple[int, int, int], args: Sequence[Any], constants: dict[str, Any], num_warps: int
) -> None:
    """Launch a kernel whose last parameters are constants, and which does not specialise on integers."""
    tensors = [x.base if isinstance(x, Tiles) else x for x in args if isinstance(x, Tiles | Tensor)]
    dtypes, is_aligned = tuple(x.dtype for x in tensors), not any(x.data_ptr() % 16 for x in tensors)
    compiled = _compiled(kernel, tuple(constants.items()), num_warps, dtypes, tensors[0].device)
    compiled(grid, args, is_aligned=is_aligned)


@gluon.jit
def load_tile(tiles, row, column, barrier, buffer, is_tile):
    """Let the copy engine bring one tile; whoever waits for the barrier sees it."""
    expect_tile(barrier, buffer, is_tile)
    copy_tile(tiles, row, column, barrier, buffer, is_tile)


@gluon.jit
def expect_tile(barrier, buffer, is_tile):
    """Let the barrier wait for what `copy_tile` brings, which must be behind a barrier of threads."""
    mbarrier.expect(barrier, buffer.numel * 2, pred=is_tile)


@gluon.jit
def copy_tile(tiles, row, column, barrier, buffer, is_tile):
    """Let the copy engine bring one tile that the barrier expects."""
    tma.async_copy_global_to_shared(tiles, [row, column], barrier, buffer, pred=is_tile)


@gluon.jit
def load_queries(tiles, batch, query, head, barrier, buffer, is_tile):
    """The same of a tile of queries."""
    mbarrier.expect(barrier, buffer.numel * 2, pred=is_tile)
    tma.async_copy_global_to_shared(tiles, [batch, query, head, 0], barrier, buffer, pred=is_tile)


@gluon.jit
def new_barriers(NUM: gl.constexpr):
    """Barriers of so many buffers; a fence must follow."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(NUM):
        mbarrier.init(barriers.index(stage), count=1)
    return barriers


@gluon.jit
def end_barriers(barriers, NUM: gl.constexpr):
    """Their memory is free."""
    for stage in gl.static_range(NUM):
        mbarrier.invalidate(barriers.index(stage))


@gluon.jit
def is_visible(
    start, position, window, LAYOUT: gl.constexpr, KEYS: gl.constexpr, LENGTH: gl.constexpr, STRIDE: gl.constexpr
):  # fmt: skip
    """Whether rows at these positions see the keys start, start + 1 …; STRIDE 0: in a window."""
    key = gl.expand_dims(start + gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT)), 0)
    at = gl.expand_dims(position, 1)
    return (key <= at) & (key > at - window) if STRIDE == 0 else key * STRIDE + LENGTH - 1 <= at


@gluon.jit
def tile_of_rows(num_streams, ROWS: gl.constexpr, GROUPS: gl.constexpr, STRIDE: gl.constexpr):
    """The program's row and group, and the first of its (query, head) pairs; those that see most come first."""
    program = gl.program_id(0)
    stream = (program % num_streams).to(gl.int64)
    tile = program // num_streams
    if STRIDE > 0:
        tile = gl.num_programs(0) // num_streams - 1 - tile
    return stream // GROUPS, stream % GROUPS, tile * ROWS


@gluon.jit
def keys_of_rows(
    start, num_served, num_keys, first_query, window, HEADS: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    LENGTH: gl.constexpr, STRIDE: gl.constexpr,
):  # fmt: skip
    """Of the tiles of keys that ROWS pairs from `start` on see: where the first begins and the last key ends; how many.

    And between which of them every pair sees every key; the first tile is never among these.
    """
    oldest = first_query + start // HEADS
    youngest = first_query + gl.minimum((start + ROWS - 1) // HEADS, num_served - 1)
    if STRIDE == 0:
        begin = gl.maximum(oldest - window + 1, 0) // KEYS * KEYS
        stop = youngest + 1
        num = (stop - begin + KEYS - 1) // KEYS
        edge = gl.minimum(gl.maximum((youngest - window + 1 - begin + KEYS - 1) // KEYS, 1), num)
        whole = gl.minimum(gl.maximum((oldest + 1 - begin) // KEYS, edge), num)
    else:
        begin = 0
        stop = gl.minimum(gl.maximum(youngest + 1 - LENGTH + STRIDE, 0) // STRIDE, num_keys)
        num = (stop + KEYS - 1) // KEYS
        edge = 1
        whole = gl.minimum(gl.maximum(oldest + 1 - LENGTH + STRIDE, 0) // STRIDE, num_keys) // KEYS
        whole = gl.maximum(whole, 1)
    return begin, stop, num, edge, whole


@gluon.jit
def places_of_rows(
    batch, group, start, num_queries, num_served, HEADS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Of the pairs start, start + 1 …: the row of the first query, the rows after it, the queries, which there are."""
    pair = gl.arange(0, ROWS, LAYOUT)
    if ROWS % HEADS:
        pair += start % HEADS
    first = (batch * num_queries * GROUPS + group) * HEADS
    first += start // HEADS * gl.full([], GROUPS * HEADS, gl.int64)
    query = start // HEADS + pair // HEADS
    return first, pair // HEADS * (GROUPS * HEADS) + pair % HEADS, query, query < num_served


@gluon.jit
def clear_rows(buffer, num_kept, LAYOUT: gl.constexpr):
    """Make zero what a tile in shared memory holds from row num_kept on: it may be no number, and zero times it."""
    held = buffer.load(LAYOUT)
    is_kept = gl.arange(0, buffer.shape[0], gl.SliceLayout(1, LAYOUT)) < num_kept
    buffer.store(gl.where(gl.expand_dims(is_kept, 1), held, 0.0).to(buffer.dtype))


@gluon.jit
def write_terms(terms, norm, row, is_row, position, delta):
    """Terms as `nsa.ops.kernel_tiles.make_terms` writes them; peak and log2 of the sum, added up."""
    peak = gl.load(norm + row * 2, mask=is_row, other=float("inf"))
    log_total = gl.load(norm + row * 2 + 1, mask=is_row, other=0.0)
    gl.store(terms + row * 4, peak, mask=is_row)
    gl.store(terms + row * 4 + 1, log_total, mask=is_row)
    gl.store(terms + row * 4 + 2, delta, mask=is_row)
    gl.store(terms + row * 4 + 3, position.to(gl.float32, bitcast=True), mask=is_row)
    return peak + log_total
