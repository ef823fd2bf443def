"""Helpers without state of their own: dtypes, warnings, masked softmax, norms."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_WARNED: set[str] = set()


def warn_once(message: str) -> None:
    """Warn, but only the first time a message comes up."""
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and exponentials are computed in: float32, or float64 where that is what comes in."""
    return torch.promote_types(dtype, torch.float32)


def tiles(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive pieces; the last one may be shorter."""
    for start in range(0, length, size):
        yield start, min(start + size, length)


def cap_scores(scores: Tensor, cap: float | None) -> Tensor:
    """Bound scores smoothly. Comes before any mask."""
    if cap is None:
        return scores
    return cap * torch.tanh(scores / cap)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is true; a row without any is zero."""
    wide = scores.to(compute_dtype(scores.dtype))
    hidden = ~mask
    filled = wide.masked_fill(hidden, torch.finfo(wide.dtype).min)
    probs = filled.softmax(-1).masked_fill(hidden, 0.0)
    return probs


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * D] to [B, heads, T, D]."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def group_queries(q: Tensor, groups: int) -> Tensor:
    """[B, H, T, D] to [B, G, R, T, D]: neighbouring heads share keys and values."""
    return q.unflatten(1, (groups, -1))


def merge_groups(out: Tensor) -> Tensor:
    """[B, G, R, T, D] to [B, T, H, D]."""
    return out.flatten(1, 2).transpose(1, 2)


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, computed in at least float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


class Meter:
    """Running means by name, for curves. Holds numbers, no tensors."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor) -> None:
        """Add the mean of a tensor."""
        self.totals[name] = self.totals.get(name, 0.0) + float(value.detach().mean())
        self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """The mean by name since the last reset."""
        return {name: total / self.counts[name] for name, total in self.totals.items()}

    def reset(self) -> None:
        """Forget everything."""
        self.totals.clear()
        self.counts.clear()
