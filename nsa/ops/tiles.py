"""Softmax attention of one tile of queries: the arithmetic the vectorized branches share.

A tile is a batch of N small dense problems: queries [N, R, Dk] against keys [N, K, Dk] and values [N, K, Dv], with an
additive mask. Scores are kept in powers of two: exp2 runs several times faster than exp on a CPU when an argument is
far below zero, which masked scores are. Scores, normalisers and gradients are float32 (float64 for float64 inputs),
under autocast too.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

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


def scaled(q: Tensor) -> Tensor:
    """Queries as `score` takes them: with its factor in them, unless they would be rounded to half precision by it."""
    return q * _factor(q) if q.dtype == accumulation_dtype(q.dtype) else q


def room_for(num_scores: int, q: Tensor) -> Tensor:
    """Memory for the scores of one tile after the other: a fresh piece for each costs as much as a product."""
    return q.new_empty(num_scores, dtype=accumulation_dtype(q.dtype))


def _product_in(room: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Product of [N, R, D] and [N, D, K], written to the beginning of `room`."""
    shape = a.shape[0], a.shape[1], b.shape[2]
    return product(a, b, room[: math.prod(shape)].view(shape))


def score(q: Tensor, k: Tensor, room: Tensor) -> Tensor:
    """log2-scaled scores [N, T, h, K] of `scaled` queries [N, T, h, Dk] and keys [N, K, Dk], in `room`."""
    scores = _product_in(room, q.flatten(1, 2), k.mT)
    if q.dtype != scores.dtype:
        scores.mul_(_factor(q))
    return scores.view(*q.shape[:-1], k.shape[1])


def _factor(q: Tensor) -> float:
    return LOG2_E / math.sqrt(q.shape[-1])


def hide(scores: Tensor, ceiling: Tensor) -> Tensor:
    """Overwrites `scores` so that none is above `ceiling`, which broadcasts against them.

    The ceiling is −inf where a key is hidden and +inf where it is seen: a sum would make NaN of a hidden +inf.
    """
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


class RowTerms(NamedTuple):
    """What the backward pass needs of each query and head: rows [..., D] of a table, or of a tile of it.

    q: `scaled`. grad: of the output. shift: what its scores are lowered by, one column after the other. delta:
    Σ grad · output. With one column, the peak, weights are not normalised, and grad and delta hold the inverse of their
    sum.
    """

    q: Tensor
    grad: Tensor
    shift: Tensor
    delta: Tensor


def row_terms(q: Tensor, grad: Tensor, out: Tensor, norm: Tensor) -> RowTerms:
    """Of queries [..., Dk], the gradient of their output [..., Dv], and output and normaliser over all keys."""
    delta = (grad.to(norm.dtype) * out.to(norm.dtype)).sum(-1, keepdim=True)
    if grad.dtype != norm.dtype:  # half precision, in which a small share of the gradient may be rounded to zero
        return RowTerms(scaled(q), grad, norm, delta)
    inverse = norm[..., 1:].neg().exp2_()
    return RowTerms(scaled(q), grad * inverse, norm[..., :1], delta.mul_(inverse))


def attend_backward(
    scores: Tensor, k: Tensor, v: Tensor, terms: RowTerms, room: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of q [N, T, h, Dk] (in `out` [N, T·h, Dk] if given), and of the scores, and weights [N, T·h, K].

    Overwrites `scores` [N, T, h, K]; the gradient of the scores is in `room`. terms: of queries [N, T, h], over all
    their keys, which may be more than these. Times the queries and the gradients of `terms`, the last two give the
    gradients of keys, but for `key_factor`, and of values.
    """
    for column in terms.shift.split(1, dim=-1):
        scores.sub_(column)
    weights = scores.exp2_()
    of_weights = _product_in(room, terms.grad.flatten(1, 2), v.mT).view_as(weights)
    grad_scores = of_weights.sub_(terms.delta).mul_(weights)
    matrices = [x.flatten(1, 2).to(k.dtype) for x in (grad_scores, weights)]
    grad_q = product(matrices[0], k, out).mul_(1 / math.sqrt(k.shape[-1]))
    return grad_q.view(*scores.shape[:-1], -1), matrices[0], matrices[1]


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a @ b to the total [N, K, D], in the accumulation dtype whatever the operands'."""
    if a.dtype == total.dtype:
        total.baddbmm_(a, b)
    else:
        total += product(a, b)


def key_factor(q: Tensor) -> float:
    """What sums over `scaled` queries [..., Dk] are to be multiplied by to be gradients of keys."""
    return 1 / LOG2_E if q.dtype == accumulation_dtype(q.dtype) else 1 / math.sqrt(q.shape[-1])


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
