"""Softmax attention on a few keys per query, with a hand-written backward, and the same by autograd.

Shapes, N being batch times queries: q [N, H, d], keys [N, G, K, d], values [N, G, K, e], bias [N, H, K],
valid [N, K], temperature [H]; G is H, or 1 when all heads share keys and values. Every query has a valid key.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .flags import switch
from .utils import compute_dtype

ALIGN = 8
TILE = 16


class FusedUnsupported(RuntimeError):
    """The fused softmax is not made for these shapes."""


def _raw_logits(q: Tensor, keys: Tensor) -> Tensor:
    """Products of queries and keys, [N, H, K]."""
    return (keys @ q.unsqueeze(-1)).squeeze(-1)


def _per_group(x: Tensor, groups: int) -> Tensor:
    """A gradient per head as one per group of keys."""
    return x if x.shape[1] == groups else x.sum(1, keepdim=True)


class FusedSoftmax(torch.autograd.Function):
    """Attention whose backward goes over tiles of keys."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
        valid: Tensor,
        temperature: Tensor,
        scale: float,
    ) -> Tensor:
        """The mixed values, [N, H, e]."""
        factor = temperature[:, None] * scale
        logits = _raw_logits(q, keys) * factor + bias
        logits = logits.masked_fill(~valid.unsqueeze(1), -torch.inf)
        top = logits.amax(-1, keepdim=True)
        weights = (logits - top).exp()
        probs = weights / weights.sum(-1, keepdim=True)
        out = (probs.unsqueeze(-2) @ values).squeeze(-2)
        ctx.save_for_backward(q, keys, values, probs, out, temperature)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of everything but `valid` and `scale`."""
        q, keys, values, probs, out, temperature = ctx.saved_tensors
        groups, count = keys.shape[1], keys.shape[2]
        factor = temperature[:, None] * ctx.scale
        delta = (grad_out * out).sum(-1, keepdim=True)
        grad_q, grad_temperature = torch.zeros_like(q), torch.zeros_like(temperature)
        grad_keys, grad_values = torch.empty_like(keys), torch.empty_like(values)
        grad_bias = torch.empty_like(probs)
        for start in range(0, count, TILE):
            part = slice(start, start + TILE)
            tile_keys, tile_probs = keys[:, :, part], probs[:, :, part]
            grad_probs = (values[:, :, part] @ grad_out.unsqueeze(-1)).squeeze(-1)
            grad_logits = tile_probs * (grad_probs - delta)
            grad_values[:, :, part] = _per_group(tile_probs.unsqueeze(-1) * grad_out.unsqueeze(-2), groups)
            scaled = grad_logits * factor
            grad_q += (scaled.unsqueeze(-2) @ tile_keys).squeeze(-2)
            grad_keys[:, :, part] = _per_group(scaled.unsqueeze(-1) * q.unsqueeze(-2), groups)
            grad_temperature += (grad_logits * _raw_logits(q, tile_keys)).sum((0, 2)) * ctx.scale
            grad_bias[:, :, part] = grad_logits
        return grad_q, grad_keys, grad_values, grad_bias, None, grad_temperature, None


def fused_softmax(
    q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, valid: Tensor, temperature: Tensor, scale: float
) -> Tensor:
    """The fused softmax; raises FusedUnsupported for numbers of keys that are not aligned."""
    if keys.shape[2] % ALIGN:
        raise FusedUnsupported(f"{keys.shape[2]} keys are no multiple of {ALIGN}")
    return FusedSoftmax.apply(q, keys, values, bias, valid, temperature, scale)


def eager_softmax(
    q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, valid: Tensor, temperature: Tensor, scale: float
) -> Tensor:
    """The same in plain operations."""
    logits = _raw_logits(q, keys) * (temperature[:, None] * scale) + bias
    probs = logits.masked_fill(~valid.unsqueeze(1), -torch.inf).softmax(-1)
    return (probs.unsqueeze(-2) @ values).squeeze(-2)


def sparse_softmax(
    q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, valid: Tensor, temperature: Tensor, scale: float
) -> Tensor:
    """Attention on selected keys, fused where that is possible; in float32 at least, in the dtype of `values`."""
    wide = compute_dtype(q)
    arguments = (q.to(wide), keys.to(wide), values.to(wide), bias.to(wide), valid, temperature.to(wide), scale)
    if not switch("QUARRY_FUSED"):
        return eager_softmax(*arguments).to(values.dtype)
    try:
        out = fused_softmax(*arguments)
    except FusedUnsupported:
        out = eager_softmax(*arguments)
    return out.to(values.dtype)
