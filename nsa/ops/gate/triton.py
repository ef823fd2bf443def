"""The gated mix of the branches as Triton kernels: CUDA, float16 and bfloat16, any H/G and Dv; one pass each way.

A program takes the heads of a few groups, so that the gradient of a group's gates is summed by one program.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.kernel_tiles import current, load_rows, side, store_rows
from nsa.ops.tiles import refuse_second_derivatives
from nsa.types import GateWeights, Output

_ROWS = 16  # heads of one program at least
_WARPS = 8  # fastest on an H200


def mix(compressed: Output, selected: Output, sliding: Output, gates: GateWeights) -> Output:
    """Σ over branches of gate · output (Eq. 5); head j belongs to group j // (H/G)."""
    out: Tensor = _Mix.apply(compressed, selected, sliding, gates)
    return out


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compressed: Tensor, selected: Tensor, sliding: Tensor, gates: Tensor) -> Tensor:
        given = [x.contiguous() for x in (compressed, selected, sliding, gates)]
        out = torch.empty_like(given[0])
        grid, sizes = _sizes(out, gates)
        with current(out.device):
            _mix[grid](*given, out, gates.numel() // 3, **sizes)
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        refuse_second_derivatives()
        given = ctx.saved_tensors
        grad = grad.to(given[0].dtype).contiguous()
        grads = tuple(torch.empty_like(x) for x in given)
        grid, sizes = _sizes(grad, given[3])
        with current(grad.device):
            _mix_backward[grid](*given, grad, *grads, given[3].numel() // 3, **sizes)
        return grads


def _sizes(out: Tensor, gates: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and what the kernels are compiled for."""
    heads = out.shape[2] // gates.shape[2]
    padded = 1 << (heads - 1).bit_length()
    rows = max(_ROWS, padded)
    grid = (-(-gates.numel() // 3 // (rows // padded)),)
    return grid, {
        "HEADS": heads,
        "PADDED": padded,
        "SIZE": out.shape[-1],
        "WIDTH": side(out.shape[-1]),
        "ROWS": rows,
        "num_warps": _WARPS,
    }


@triton.jit(do_not_specialize=["num_groups"])
def _mix(
    compressed, selected, sliding, gates, out, num_groups,
    HEADS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS heads of the output; num_groups counts those of all tokens."""
    first, group, row, is_row = _heads(num_groups, HEADS, PADDED, ROWS)
    gates += first * 3
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for branch in tl.static_range(3):
        x = compressed if branch == 0 else selected if branch == 1 else sliding
        weight = tl.load(gates + group * 3 + branch, mask=is_row, other=0.0).to(tl.float32)
        total += weight[:, None] * load_rows(x + first * HEADS * SIZE, row, is_row, SIZE, WIDTH).to(tl.float32)
    store_rows(out + first * HEADS * SIZE, row, is_row, total, SIZE, WIDTH)


@triton.jit(do_not_specialize=["num_groups"])
def _mix_backward(
    compressed, selected, sliding, gates, grad, grad_compressed, grad_selected, grad_sliding, grad_gates, num_groups,
    HEADS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of ROWS heads of the branches, and of the gates of their groups."""
    first, group, row, is_row = _heads(num_groups, HEADS, PADDED, ROWS)
    gates += first * 3
    grad_gates += first * 3
    grad_tile = load_rows(grad + first * HEADS * SIZE, row, is_row, SIZE, WIDTH).to(tl.float32)
    whole_group = tl.arange(0, ROWS // PADDED)
    for branch in tl.static_range(3):
        x = compressed if branch == 0 else selected if branch == 1 else sliding
        grad_x = grad_compressed if branch == 0 else grad_selected if branch == 1 else grad_sliding
        weight = tl.load(gates + group * 3 + branch, mask=is_row, other=0.0).to(tl.float32)
        store_rows(grad_x + first * HEADS * SIZE, row, is_row, weight[:, None] * grad_tile, SIZE, WIDTH)
        tile = load_rows(x + first * HEADS * SIZE, row, is_row, SIZE, WIDTH).to(tl.float32)
        found = tl.sum(tl.reshape(tl.sum(tile * grad_tile, 1), [ROWS // PADDED, PADDED]), 1)
        tl.store(
            grad_gates + whole_group * 3 + branch, found.to(grad_gates.dtype.element_ty),
            mask=first + whole_group < num_groups,
        )  # fmt: skip


@triton.jit
def _heads(num_groups, HEADS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The program's first group; the group and the row of each of its heads, counted from there; which exist."""
    first = tl.program_id(0).to(tl.int64) * (ROWS // PADDED)
    place = tl.arange(0, ROWS)
    group, head = place // PADDED, place % PADDED
    return first, group, group * HEADS + head, (head < HEADS) & (first + group < num_groups)
