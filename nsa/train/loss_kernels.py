"""The cross-entropy of logits in half precision as Triton kernels, computed in float32 without a copy in float32."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.kernel_tiles import current
from nsa.ops.tiles import LOG2_E, refuse_second_derivatives

_PART, _WARPS = 4096, 8  # logits that a program holds at once
_LOG2_E = tl.constexpr(LOG2_E)


def cross_entropy(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """The loss of each row of `logits` [N, V], float32 [N]; zero where its target is `ignored`.

    NaN where the target is another number outside of the vocabulary.
    """
    losses: Tensor = _CrossEntropy.apply(logits, targets, ignored)
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        targets = targets.contiguous()
        losses, norm = (torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(2))
        with current(logits.device):
            _losses[(logits.shape[0],)](
                logits, targets, losses, norm, logits.stride(0), logits.shape[1], ignored, PART=_PART, num_warps=_WARPS
            )
        ctx.save_for_backward(logits, targets, norm)
        ctx.ignored = ignored
        return losses

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        logits, targets, norm = ctx.saved_tensors
        found = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        with current(logits.device):
            _gradients[logits.shape[0], -(-logits.shape[1] // _PART)](
                logits, targets, norm, grad.contiguous(), found, logits.stride(0), logits.shape[1], ctx.ignored,
                PART=_PART, num_warps=_WARPS,
            )  # fmt: skip
        return found, None, None


_VARYING = ["stride", "size", "ignored"]  # no reason to compile again


@triton.jit(do_not_specialize=_VARYING)
def _losses(logits, targets, losses, norm, stride, size, ignored, PART: tl.constexpr):
    """Loss of one row, and log2 of the sum of its logits' exponentials."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    peak = tl.full([PART], float("-inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    for start in range(0, size, PART):
        column = start + tl.arange(0, PART)
        score = tl.load(logits + column, mask=column < size, other=float("-inf")).to(tl.float32) * _LOG2_E
        highest = tl.maximum(peak, score)
        origin = tl.where(highest == float("-inf"), 0.0, highest)
        total = total * tl.exp2(peak - origin) + tl.exp2(score - origin)
        peak = highest
    highest = tl.max(peak, 0)
    log_total = highest + tl.log2(tl.sum(total * tl.exp2(peak - highest), 0))
    target = tl.load(targets + row)
    is_known = (target >= 0) & (target < size)
    score = tl.load(logits + target, mask=is_known, other=float("nan")).to(tl.float32)
    tl.store(losses + row, tl.where(target == ignored, 0.0, log_total / _LOG2_E - score))
    tl.store(norm + row, log_total)


@triton.jit(do_not_specialize=_VARYING)
def _gradients(logits, targets, norm, grad, found, stride, size, ignored, PART: tl.constexpr):
    """The gradient of PART logits of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PART + tl.arange(0, PART)
    score = tl.load(logits + row * stride + column, mask=column < size, other=0.0).to(tl.float32) * _LOG2_E
    target = tl.load(targets + row)
    weight = tl.where(target == ignored, 0.0, tl.load(grad + row))
    probability = tl.exp2(score - tl.load(norm + row))
    gradient = (probability - (column == target).to(tl.float32)) * weight
    # What is not finite in a row that is ignored reaches nobody.
    gradient = tl.where(target == ignored, 0.0, gradient)
    tl.store(found + row * size + column, gradient.to(found.dtype.element_ty), mask=column < size)
