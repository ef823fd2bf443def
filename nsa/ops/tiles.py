"""Softmax attention of one tile of queries: the arithmetic the vectorized branches share.

A tile is a batch of N small dense problems: queries [N, R, Dk] against keys [N, K, Dk] and values [N, K, Dv], with an
additive mask. Scores are kept in powers of two: exp2 runs several times faster than exp on a CPU when an argument is
far below zero, which masked scores are. Scores, normalisers and gradients are float32 (float64 for float64 inputs),
under autocast too.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)

# Elements held at once. On a CPU a tile stays in cache; on a GPU it fills the device.
_CPU_BUDGET, _CUDA_BUDGET = 1 << 19, 1 << 26


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype scores and sums are kept in: float64 for float64, float32 for all else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def tile_budget(device: torch.device, num_elements: int | None = None) -> int:
    """How many score elements one tile may hold: num_elements, or as many as suit `device`."""
    if num_elements is not None:
        return num_elements
    return _CPU_BUDGET if device.type == "cpu" else _CUDA_BUDGET


def operand(x: Tensor) -> Tensor:
    """`x` as matrix products take it: half precision is widened on a CPU, where its products are slow."""
    return x.to(accumulation_dtype(x.dtype)) if x.device.type == "cpu" else x


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Batched a @ b with the accumulation dtype as result, whatever the operands' dtype; written to `out` if given."""
    if a.dtype == accumulation_dtype(a.dtype):
        return torch.bmm(a, b, out=out)
    return torch.bmm(a, b, out_dtype=torch.float32, out=out)


def score(q: Tensor, k: Tensor, ceiling: Tensor) -> Tensor:
    """log2-scaled scores [N, T, h, K] of queries [N, T, h, Dk], none above `ceiling`, which broadcasts against them.

    The ceiling is −inf where a key is hidden and +inf where it is seen: a sum would make NaN of a hidden +inf.
    """
    factor = LOG2_E / math.sqrt(q.shape[-1])
    rows = q.flatten(1, 2)
    if q.dtype == accumulation_dtype(q.dtype):
        scores = torch.bmm(rows * factor, k.mT)
    else:
        scores = product(rows, k.mT).mul_(factor)  # a factor rounded into half-precision queries would cost accuracy
    scores = scores.view(*q.shape[:-1], k.shape[1])
    return torch.minimum(scores, ceiling, out=scores)


def attend(scores: Tensor, v: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Overwrites `scores` [N, T, h, K] with unnormalised weights 2^(score − peak).

    Returns the unnormalised output [N, T, h, Dv] (in `out` [N, T·h, Dv] if given), the weights, their sum and the peak
    [N, T, h, 1]. A row that sees no key has weights, sum and output of exactly zero.
    """
    peak = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
    weights = scores.sub_(peak).exp2_()
    total = weights.sum(-1, keepdim=True)
    out = product(weights.flatten(1, 2).to(v.dtype), v, out)
    return out.view(*weights.shape[:-1], v.shape[-1]), weights, total, peak


def normaliser(peak: Tensor, total: Tensor) -> Tensor:
    """[..., 2]: the peak, and log2 of the sum of 2^(score − peak), 0 for a row that sees no key.

    Kept apart because their sum would lose the second to rounding where scores are large.
    """
    return torch.cat((peak, total.clamp_min(1).log2()), dim=-1)  # the largest term of a sum that is not empty is 1


def attend_backward(
    scores: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    norm: Tensor,
    delta: Tensor,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [N, T, h, Dk] (in `out` [N, T·h, Dk] if given), k [N, K, Dk] and v [N, K, Dv].

    Overwrites `scores` [N, T, h, K].

    grad: of the output, [N, T, h, Dv]. norm: `normaliser` over all the keys of the query, [N, T, h, 2], which may be
    more than this tile's. delta: Σ grad · output over Dv, [N, T, h, 1].
    """
    weights = scores.sub_(norm[..., :1]).sub_(norm[..., 1:]).exp2_()
    rows = grad.flatten(1, 2)
    grad_scores = product(rows, v.mT).view_as(weights).sub_(delta).mul_(weights).flatten(1, 2).to(k.dtype)
    scale = 1 / math.sqrt(q.shape[-1])
    grad_v = product(weights.flatten(1, 2).mT.to(rows.dtype), rows)
    grad_q = product(grad_scores, k, out).mul_(scale).view(q.shape)
    grad_k = product(grad_scores.mT, q.flatten(1, 2)).mul_(scale)
    return grad_q, grad_k, grad_v


def refuse_second_derivatives() -> None:
    """Raise RuntimeError inside a backward pass that is itself to be differentiated.

    `once_differentiable` does not: its refusal is off the path when `torch.autograd.grad` is given inputs.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("second derivatives are not computed here; impl='reference' computes them")


def to_streams(x: Tensor, num_groups: int) -> Tensor:
    """[B, T, G·h, D] -> [B·G, T, h, D]: one stream per row and group, as the tiles take it."""
    return operand(x.unflatten(2, (num_groups, -1)).transpose(1, 2).flatten(0, 1))


def from_streams(x: Tensor, num_groups: int) -> Tensor:
    """The inverse of `to_streams`: [B·G, T, h, D] -> [B, T, G·h, D]."""
    return x.unflatten(0, (-1, num_groups)).transpose(1, 2).flatten(2, 3)


def split(stop: int, size: int, start: int = 0) -> Iterator[slice]:
    """Slices of at most `size` that cover range(start, stop) in order."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
