"""Attention in which each tile of queries sees one slice of the keys, masked inside; memory bounded by the tile.

The sliding and the compressed branch are both of this kind. Serves any device, float64, float32, bfloat16 and float16,
any H/G, Dv != Dk. The backward pass computes scores again: nothing of size S x S or S x C is kept.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.ops.tiles import (
    accumulation_dtype,
    add_product,
    attend,
    attend_backward,
    from_streams,
    hide,
    key_factor,
    normaliser,
    refuse_second_derivatives,
    room_for,
    row_terms,
    scaled,
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

    def seen_by_all(self, queries: slice) -> slice:
        """The keys that each of `queries` sees; empty where it stops before it starts."""

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


_Tile = tuple[slice, slice, slice]


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
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=dtype)
    slots = None if choose is None else choose.of_first_block(q, groups)
    num_reads = q.new_zeros(*q.shape[:2], groups, dtype=torch.int64) if counts_reads else None
    keys_of, values_of = _keys(k), _keys(v)
    tiles = list(_tiles(q, band, budget))
    room = room_for(_num_scores(tiles, q), q)
    for rows, queries, keys in tiles:
        if keys.stop <= keys.start:
            out[rows, queries], norm[rows, queries] = 0, 0
            continue
        at = slice(rows.start * groups, rows.stop * groups)
        scores = score(scaled(to_streams(q[rows, queries], groups)), keys_of[at, keys], room)
        _hide(scores, band, queries, keys)
        part, weights, total, peak = attend(scores, values_of[at, keys])
        inverse = total.clamp_min(1).reciprocal()  # the largest term of a sum that is not empty is 1
        out[rows, queries] = from_streams(part.mul_(inverse), groups)
        norm[rows, queries] = from_streams(normaliser(peak, total), groups)
        if num_reads is not None:
            num_reads[rows, queries] = _visible(band, queries, keys, q.device).sum(-1)[:, None]
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
    keys_of, values_of = _keys(k), _keys(v)
    grad_q = torch.empty_like(q)
    grad_k = torch.zeros_like(keys_of, dtype=norm.dtype)
    grad_v = torch.zeros_like(values_of, dtype=norm.dtype)
    tiles = list(_tiles(q, band, budget))
    rooms = [room_for(_num_scores(tiles, q), q) for _ in range(2)]
    for rows, queries, keys in tiles:
        if keys.stop <= keys.start:
            grad_q[rows, queries] = 0
            continue
        at = slice(rows.start * groups, rows.stop * groups)
        terms = row_terms(*(to_streams(x[rows, queries], groups) for x in (q, grad.to(q.dtype), out, norm)))
        scores = score(terms.q, keys_of[at, keys], rooms[0])
        _hide(scores, band, queries, keys)
        of_q, of_scores, weights = attend_backward(scores, keys_of[at, keys], values_of[at, keys], terms, rooms[1])
        grad_q[rows, queries] = from_streams(of_q, groups)
        add_product(grad_k[at, keys], of_scores.mT, terms.q.flatten(1, 2))
        add_product(grad_v[at, keys], weights.mT, terms.grad.flatten(1, 2))
    grad_k.mul_(key_factor(keys_of))
    # Contiguous, as the operator of torch gives them: what sums them over tokens then does so in the same order.
    of_keys, of_values = (from_streams(x.unsqueeze(2), groups).contiguous() for x in (grad_k, grad_v))
    return grad_q, of_keys, of_values


def _num_scores(tiles: Sequence[_Tile], q: Tensor) -> int:
    """Of the largest tile."""
    return max((math.prod(max(0, x.stop - x.start) for x in tile) for tile in tiles), default=0) * q.shape[2]


def _tiles(q: Tensor, band: Band, budget: int) -> Iterator[_Tile]:
    """Rows, queries and keys of each tile; its scores fit the budget, or it has 16 queries."""
    num_rows, num_queries, num_heads, _ = q.shape
    budget = budget // num_heads
    start = 0
    while start < num_queries:
        size = min(band.max_queries, num_queries - start)
        keys = band.keys(slice(start, start + size))
        while size > _MIN_QUERIES and size * (keys.stop - keys.start) > budget:
            size = -(-size // 2)
            keys = band.keys(slice(start, start + size))
        for rows in split(num_rows, max(1, budget // (size * max(1, keys.stop - keys.start)))):
            yield rows, slice(start, start + size), keys
        start += size


def _hide(scores: Tensor, band: Band, queries: slice, keys: slice) -> None:
    """Overwrites scores [N, T, h, K] of keys that a query does not see by −inf."""
    seen_by_all = band.seen_by_all(queries)
    edges = [slice(keys.start, seen_by_all.start), slice(seen_by_all.stop, keys.stop)]
    for edge in edges if seen_by_all.start < seen_by_all.stop else [keys]:
        if edge.start < edge.stop:
            visible = _visible(band, queries, edge, scores.device)
            ceiling = torch.where(visible, torch.inf, -torch.inf).to(scores.dtype)
            hide(scores[..., edge.start - keys.start : edge.stop - keys.start], ceiling[:, None])


def _visible(band: Band, queries: slice, keys: slice, device: torch.device) -> Tensor:
    """Whether each of the queries sees each of the keys, [T, K]."""
    query = torch.arange(queries.start, queries.stop, device=device)
    key = torch.arange(keys.start, keys.stop, device=device)
    return band.visible(query[:, None], key)


def _keys(x: Tensor) -> Tensor:
    """[B, K, G, D] -> [B·G, K, D], contiguous: every tile reads them."""
    return to_streams(x, x.shape[2]).squeeze(2).contiguous()


def _group_sum(weights: Tensor, inverse: Tensor, groups: int) -> Tensor:
    return (weights * inverse).sum(2).unflatten(0, (-1, groups)).transpose(1, 2)
