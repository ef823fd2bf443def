"""Attention in which each tile of queries sees one slice of the keys, masked inside; memory bounded by the tile.

The sliding and the compressed branch are both of this kind. Serves any device, float64, float32, bfloat16 and float16,
any H/G, Dv != Dk. The backward pass computes scores again: nothing of size S x S or S x C is kept.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.tiles import (
    accumulation_dtype,
    attend,
    attend_backward,
    from_streams,
    normaliser,
    refuse_second_derivatives,
    score,
    split,
    tile_budget,
    to_streams,
)

_MIN_QUERIES = 16
_NUM_ARGUMENTS = 7  # of `_BandedAttention.forward`


@runtime_checkable
class Band(Protocol):
    """Which keys a query may see."""

    @property
    def max_queries(self) -> int:
        """Longest tile of queries worth forming: a longer one would mask most of what it computes."""

    def keys(self, queries: slice) -> slice:
        """The smallest slice of keys that holds all that `queries` may see."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether query (row index) may see key; broadcasts two integer tensors."""


@runtime_checkable
class Choose(Protocol):
    """A function from probabilities to slots, which keeps nothing from one call to the next."""

    def __call__(self, probabilities: Tensor, first: int) -> Tensor:
        """Slots [B, T, G, n] of queries first, first + 1 … from probabilities [B, T, G, K] of the first K keys.

        They are summed over the heads of a group.
        """

    def of_first_block(self, like: Tensor, num_groups: int) -> Tensor:
        """Slots [B, T, G, n] of queries [B, T, …] that see no key."""


class Banded(NamedTuple):
    """The output [B, T, H, Dv] and its normaliser [B, T, H, 2], which is not differentiated.

    Slots [B, T, G, n] and keys read [B, T, G], each None where it was not asked for.
    """

    out: Tensor
    norm: Tensor
    slots: Tensor | None
    num_reads: Tensor | None


def banded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Band,
    choose: Choose | None = None,
    counts_reads: bool = False,
    num_tile_elements: int | None = None,
) -> Banded:
    """Softmax attention [B, T, H, Dv] of q [B, T, H, Dk] over the keys `band` shows; zero where it shows none.

    choose: makes slots of the probabilities, which exist one tile at a time. num_tile_elements: scores that a tile may
    hold; None is as many as suit the device.
    """
    budget = tile_budget(q.device, num_tile_elements)
    return Banded(*_BandedAttention.apply(q, k, v, band, choose, counts_reads, budget))


def banded_forward(
    q: Tensor, k: Tensor, v: Tensor, band: Band, choose: Choose | None, counts_reads: bool, budget: int
) -> Banded:
    """What `banded_attention` gives, not to be differentiated."""
    groups = k.shape[2]
    dtype = accumulation_dtype(q.dtype)
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    norm = q.new_zeros(*q.shape[:3], 2, dtype=dtype)
    slots = None if choose is None else choose.of_first_block(q, groups)
    num_reads = q.new_zeros(*q.shape[:2], groups, dtype=torch.int64) if counts_reads else None
    for rows, queries, keys in _tiles(q, band, budget):
        visible, ceiling = _mask(band, queries, keys, q.device, dtype)
        scores = score(to_streams(q[rows, queries], groups), _keys(k[rows, keys]), ceiling)
        part, weights, total, peak = attend(scores, _keys(v[rows, keys]))
        inverse = torch.where(total == 0, 0, total.reciprocal())
        out[rows, queries] = from_streams(part.mul_(inverse), groups).to(out.dtype)
        norm[rows, queries] = from_streams(normaliser(peak, total), groups)
        if num_reads is not None:
            num_reads[rows, queries] = visible.sum(-1)[:, None]
        if choose is not None and slots is not None:
            slots[rows, queries] = choose(_group_sum(weights, inverse, groups), queries.start)
    return Banded(out, norm, slots, num_reads)


class _BandedAttention(torch.autograd.Function):
    forward = staticmethod(banded_forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Banded) -> None:
        q, k, v, ctx.band, *_, ctx.budget = inputs
        out, norm, slots, num_reads = output
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.mark_non_differentiable(norm, *(x for x in (slots, num_reads) if x is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_others: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        if grad is None:  # nobody differentiates the output; zeros are not made for it, nor for the slots
            return (None,) * _NUM_ARGUMENTS
        q, k, v, out, norm = ctx.saved_tensors
        found = banded_gradients(grad, q, k, v, out, norm, ctx.band, ctx.budget)
        return *found, *(None,) * (_NUM_ARGUMENTS - len(found))


@without_autocast
def banded_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, band: Band, budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; the scores are computed again."""
    grad_q, grad_k, grad_v = banded_sums(grad, q, k, v, out, norm, band, budget)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def banded_sums(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, band: Band, budget: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, those of k and v in the dtype of sums."""
    groups = k.shape[2]
    delta = (grad.to(norm.dtype) * out.to(norm.dtype)).sum(-1, keepdim=True)
    grad_q = torch.zeros_like(q)
    grad_k = torch.zeros_like(k, dtype=norm.dtype)
    grad_v = torch.zeros_like(v, dtype=norm.dtype)
    for rows, queries, keys in _tiles(q, band, budget):
        _, ceiling = _mask(band, queries, keys, q.device, norm.dtype)
        tile_q, tile_grad, tile_norm, tile_delta = (
            to_streams(x[rows, queries], groups) for x in (q, grad.to(q.dtype), norm, delta)
        )
        tile_k, tile_v = _keys(k[rows, keys]), _keys(v[rows, keys])
        scores = score(tile_q, tile_k, ceiling)
        parts = attend_backward(scores, tile_q, tile_k, tile_v, tile_grad, tile_norm, tile_delta)
        grad_q[rows, queries] = from_streams(parts[0], groups).to(q.dtype)
        grad_k[rows, keys] += from_streams(parts[1].unsqueeze(2), groups)
        grad_v[rows, keys] += from_streams(parts[2].unsqueeze(2), groups)
    return grad_q, grad_k, grad_v


def _tiles(q: Tensor, band: Band, budget: int) -> Iterator[tuple[slice, slice, slice]]:
    """Rows, queries and keys of each tile that sees a key; its scores fit the budget, or it has 16 queries."""
    num_rows, num_queries, num_heads, _ = q.shape
    budget = budget // num_heads
    start = 0
    while start < num_queries:
        size = min(band.max_queries, num_queries - start)
        keys = band.keys(slice(start, start + size))
        while size > _MIN_QUERIES and size * (keys.stop - keys.start) > budget:
            size = -(-size // 2)
            keys = band.keys(slice(start, start + size))
        if keys.stop > keys.start:
            for rows in split(num_rows, max(1, budget // (size * (keys.stop - keys.start)))):
                yield rows, slice(start, start + size), keys
        start += size


def _mask(band: Band, queries: slice, keys: slice, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Visible [T, K], and the same as +inf or −inf, a ceiling for scores [N, T, h, K]."""
    query = torch.arange(queries.start, queries.stop, device=device)
    key = torch.arange(keys.start, keys.stop, device=device)
    visible = band.visible(query[:, None], key)
    ceiling = torch.full(visible.shape, torch.inf, device=device, dtype=dtype).masked_fill_(~visible, -torch.inf)
    return visible, ceiling[:, None]


def _keys(x: Tensor) -> Tensor:
    """[B, K, G, D] -> [B·G, K, D]."""
    return to_streams(x, x.shape[2]).squeeze(2)


def _group_sum(weights: Tensor, inverse: Tensor, groups: int) -> Tensor:
    return (weights * inverse).sum(2).unflatten(0, (-1, groups)).transpose(1, 2)
