"""What the parts of a block's readers add to the gradients of its keys and values, added up in the order of parts."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from nsa.ops.kernel_tiles import load_rows, side, store_rows

_ROWS = 16  # tokens of a block whose parts one program adds up


def sum_parts(
    parts: tuple[Tensor, Tensor], first_part: Tensor, so_far: Sequence[Tensor], grads: Sequence[Tensor], length: int
) -> None:
    """Writes gradients [B, S, G, D] of keys and of values, rounded to their dtype.

    parts: float32 [parts, length, D] of each. first_part: of every block, see `Readers`. so_far: what was added to the
    first n tokens before, float32 [spans, B, n, G, D].
    """
    rows, num_tokens, groups = grads[0].shape[:3]
    num_blocks, sizes = -(-num_tokens // length), [x.shape[-1] for x in grads]
    between = [x.stride(0) // x.shape[-1] for x in so_far]
    _sum_parts[rows * groups * num_blocks, -(-length // _ROWS), 2](
        *parts, first_part, *so_far, *grads, len(so_far[0]), *between, num_tokens, so_far[0].shape[2], num_blocks,
        GROUPS=groups, SIZE_K=sizes[0], SIZE_V=sizes[1], WIDTH_K=side(sizes[0]), WIDTH_V=side(sizes[1]), LENGTH=length,
        ROWS=_ROWS,
    )  # fmt: skip


_VARYING = ["num_spans", "between_k", "between_v", "num_tokens", "num_dense", "num_blocks"]


@triton.jit(do_not_specialize=_VARYING)
def _sum_parts(
    part_k, part_v, first_part, dense_k, dense_v, grad_k, grad_v, num_spans, between_k, between_v, num_tokens,
    num_dense, num_blocks,
    GROUPS: tl.constexpr, SIZE_K: tl.constexpr, SIZE_V: tl.constexpr, WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr,
    LENGTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of keys, or of values, of ROWS tokens of one block: the sums of its parts [parts, LENGTH, …].

    In their order, after what spans of queries add to the first tokens: dense_k [spans, B, num_dense, G, Dk] and
    dense_v, the spans so many rows apart.
    """
    if tl.program_id(2) == 0:
        _sum_of(
            part_k, first_part, dense_k, grad_k, num_spans, between_k, num_tokens, num_dense, num_blocks, GROUPS,
            SIZE_K, WIDTH_K, LENGTH, ROWS,
        )  # fmt: skip
    else:
        _sum_of(
            part_v, first_part, dense_v, grad_v, num_spans, between_v, num_tokens, num_dense, num_blocks, GROUPS,
            SIZE_V, WIDTH_V, LENGTH, ROWS,
        )  # fmt: skip


@triton.jit
def _sum_of(
    parts, first_part, dense, grad, num_spans, between, num_tokens, num_dense, num_blocks,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The same of one of the two."""
    block = tl.program_id(0).to(tl.int64)
    within = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    stream = block // num_blocks
    token = block % num_blocks * LENGTH + within
    row = (stream // GROUPS * num_dense + token) * GROUPS + stream % GROUPS
    is_dense = (within < LENGTH) & (token < num_dense)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for span in range(tl.where(tl.max(is_dense.to(tl.int32), 0) > 0, num_spans, 0)):
        total += load_rows(dense + span * between.to(tl.int64) * SIZE, row, is_dense, SIZE, WIDTH)
    for part in range(tl.load(first_part + block), tl.load(first_part + block + 1)):
        total += load_rows(parts + part * LENGTH * SIZE, within, within < LENGTH, SIZE, WIDTH)
    row = (stream // GROUPS * num_tokens + token) * GROUPS + stream % GROUPS
    store_rows(grad, row, (within < LENGTH) & (token < num_tokens), total, SIZE, WIDTH)
