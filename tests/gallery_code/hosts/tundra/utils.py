"""Small helpers on tensors, and the norm."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums and exponentials: float32 at least, float64 for float64 inputs."""
    return torch.promote_types(x.dtype, torch.float32)


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive pieces, the last one as short as it is."""
    for start in range(0, length, size):
        yield start, min(start + size, length)


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over what is visible in the last dimension; zeros where nothing is."""
    probs = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1)
    return probs * visible


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of each row by their numbers: x [B, S, ...], index [B, ...], result [B, ..., ...]."""
    first = x.shape[1] * torch.arange(x.shape[0], device=x.device)
    row = index + first.view(-1, *[1] * (index.dim() - 1))
    return F.embedding(row, x.flatten(0, 1).flatten(1)).view(*index.shape, *x.shape[2:])


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
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight
