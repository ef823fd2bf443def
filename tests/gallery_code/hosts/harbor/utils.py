"""Flags and small helpers.

HARBOR_SDPA        0: attention never uses torch's fused kernel
HARBOR_CHECKPOINT  0: attention keeps its activations in training instead of computing them again

Both are read at every call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_OFF = {"0", "false", "no", "off"}


def flag(name: str, default: bool) -> bool:
    """An environment flag; anything but a word for off is on."""
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    return value not in _OFF


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(dtype, torch.float32)


def pieces(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive pieces."""
    for start in range(0, length, size):
        yield start, min(start + size, length)


def repeat_kv(x: Tensor, repeats: int) -> Tensor:
    """[B, G, S, D] to [B, G * repeats, S, D]: neighbouring query heads share a head."""
    if repeats == 1:
        return x
    return x.repeat_interleave(repeats, dim=1)


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype))
        variance = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def describe(module: nn.Module) -> str:
    """One line per parameter, for logs."""
    lines = [f"{name:60s} {tuple(p.shape)!s:>18} {p.dtype}" for name, p in module.named_parameters()]
    lines.append(f"{count_parameters(module)} trainable numbers")
    return "\n".join(lines)
