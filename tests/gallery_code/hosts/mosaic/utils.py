"""Small helpers on tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums and exponentials: float32 at least, float64 for float64 inputs."""
    return torch.promote_types(x.dtype, torch.float32)


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def pad_time(x: Tensor, amount: int, dim: int = 2) -> Tensor:
    """Zeros appended along the time dimension."""
    if amount == 0:
        return x
    behind = x.dim() - 1 - (dim % x.dim())
    return F.pad(x, (0, 0) * behind + (0, amount))


def to_chunks(x: Tensor, size: int, dim: int = 2) -> Tensor:
    """The time dimension, a multiple of `size`, as two: chunks, tokens of a chunk."""
    return x.unflatten(dim, (x.shape[dim] // size, size))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, H * d] as [B, H, S, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, S, d] as [B, S, H * d]."""
    return x.transpose(1, 2).flatten(2)


def previous_token(x: Tensor, first: Tensor | None = None) -> Tensor:
    """The input one token earlier: [B, S, D] shifted right, headed by `first` or zeros.

    The body is a strided view of the input, so that only the head is copied.
    """
    batch, length, width = x.shape
    head = x.new_zeros(batch, 1, width) if first is None else first
    if length == 1:
        return head
    flat = x.contiguous()
    body = torch.as_strided(flat, (batch, length - 1, width), (length * width, width, 1), flat.storage_offset())
    return torch.cat([head, body], dim=1)
