"""Root-mean-square norms."""

import torch
from torch import Tensor, nn

from .utils import compute_dtype


class RMSNorm(nn.Module):
    """Norm over the last dimension, in float32 at least."""

    def __init__(self, dim: int, eps: float) -> None:
        """Norm of `dim` channels."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] normed."""
        wide = x.to(compute_dtype(x))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


class HeadNorm(nn.Module):
    """Norm of every head's output by itself, with a weight per channel of a head."""

    def __init__(self, heads: int, head_dim: int, eps: float) -> None:
        """Norm of [B, H, S, head_dim]."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, 1, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, S, head_dim] normed."""
        wide = x.to(compute_dtype(x))
        power = wide.square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(power + self.eps)).to(x.dtype) * self.weight
