"""Small helpers on tensors."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums and exponentials: float32 at least, float64 for float64 inputs."""
    return torch.promote_types(x.dtype, torch.float32)


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive pieces, the last one as short as it is."""
    for start in range(0, length, size):
        yield start, min(start + size, length)


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """The tokens that an index names: x [B, T, ...], index [B, C, K], result [B, C, K, ...]."""
    batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
    return x[batch, index]


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
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
