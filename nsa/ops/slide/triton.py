"""The sliding branch as Triton kernels: CUDA, float16 and bfloat16, head sizes up to 256, any H/G, Dv != Dk."""

from typing import Any

import torch
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.band_kernels import Band, attend, attend_backward
from nsa.ops.geometry import Geometry
from nsa.ops.tiles import refuse_second_derivatives
from nsa.types import Key, Output, Query, Value


def sliding_attention(q: Query, k: Key, v: Value, geometry: Geometry) -> Output:
    """Attention of each query over the last w keys, its own included; queries are the last T of the S key tokens."""
    out: Tensor = _SlidingAttention.apply(q, k, v, geometry)
    return out


class _SlidingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out, norm = forward(q, k, v, geometry)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.geometry = geometry
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        q, k, v, out, norm = ctx.saved_tensors
        return *gradients(grad, q, k, v, out, norm, ctx.geometry), None


def forward(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Output and normaliser [B, T, H, 2] of contiguous q, k and v."""
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=torch.float32)
    attend(q, k, v, Band(q.shape[1], geometry.w), out, norm)
    return out, norm


@without_autocast
def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of contiguous q, k and v."""
    grad = grad.to(q.dtype).contiguous()
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    terms = q.new_empty(*q.shape[:3], 4, dtype=torch.float32)
    parts = grads[1][None], grads[2][None]
    attend_backward(grad, q, k, v, Band(q.shape[1], geometry.w), out, norm, grads[0], terms, parts, q.shape[1])
    return grads
