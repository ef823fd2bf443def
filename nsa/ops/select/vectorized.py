"""The selected branch, fast: any device, float64, float32, bfloat16 and float16, any H/G, Dv != Dk; no host sync.

Queries that choose every block attend densely. Others are taken by chunks: (query, slot) pairs are grouped by the block
they read, each group is a dense product, and the partial softmaxes of a query's slots are merged. The backward pass
computes scores again: nothing of size S x S is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa.autocast import without_autocast
from nsa.ops.banded import banded_forward, banded_gradients, banded_sums
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.select.dense import DenseQueries
from nsa.ops.select.grouping import Grouping, group_by_block, sum_rows
from nsa.ops.tiles import (
    RowTerms,
    accumulation_dtype,
    attend,
    attend_backward,
    from_streams,
    hide,
    key_factor,
    normaliser,
    product,
    refuse_second_derivatives,
    room_for,
    row_terms,
    scaled,
    score,
    split,
    tile_budget,
    to_streams,
)
from nsa.types import Key, Output, Query, Slots, Value

_FORCED_KEY = (1 << 31) - 1  # above the bits of every float32, NaN included
_ROWS_PER_PRODUCT = 192  # query rows (queries x heads) that make one matrix product efficient
_TABLES_PER_TILE = 12  # the table of partial outputs of one chunk, in tile budgets


def selected_attention(
    q: Query,
    k: Key,
    v: Value,
    slots: Slots,
    geometry: Geometry,
    is_chosen: bool = False,
    reads: ReadCounter | None = None,
    num_tile_elements: int | None = None,
) -> Output:
    """Attention of each query over the tokens of its chosen blocks, up to itself (Eq. 11 and 12).

    The T queries are the last T of the S key tokens. A query with no readable key gives exactly zero. is_chosen: the
    slots are those of Eq. 11, so that queries in the first n_sel blocks see every key up to themselves.
    """
    sizes = _sizes(q, k, geometry, num_tile_elements, is_chosen=is_chosen)
    out: Tensor = _SelectedAttention.apply(q, k, v, slots, sizes, reads)
    return out


def choose_slots(importance: Tensor, geometry: Geometry, first_query: int) -> Slots:
    """Slots [B, T, G, n_sel] of queries first_query + i from importance [B, T, G, num_blocks] (Eq. 11 and 12).

    Block 0 and the two most recent are forced, the rest go by importance, ties to the lower index; ascending, −1 last.
    """
    num_blocks = importance.shape[-1]
    block = torch.arange(num_blocks, device=importance.device)
    current = torch.arange(first_query, first_query + importance.shape[1], device=importance.device) // geometry.l_sel
    age = (current[:, None] - block)[:, None]  # [T, 1, num_blocks]
    candidate = age >= 0
    forced = candidate & ((age < 2) | (block == 0))
    num_chosen = min(geometry.n_sel, num_blocks)
    # What is not above zero, NaN and −0.0 too, ranks as zero: nothing outranks a forced block.
    positive = torch.where(importance > 0, importance, 0).detach()
    if importance.dtype == torch.float64:
        finite = positive.clamp(max=torch.finfo(torch.float64).max)
        rank = finite.masked_fill(forced, torch.inf).masked_fill(~candidate, -torch.inf)
        best = rank.argsort(dim=-1, descending=True, stable=True)[..., :num_chosen]
    else:
        # Non-negative floats order as their bits do.
        bits = positive.float().contiguous().view(torch.int32)
        key = bits.masked_fill(forced, _FORCED_KEY).masked_fill(~candidate, -1)
        if key.is_cuda:  # where topk takes a pass for every few bits
            best = key.argsort(dim=-1, descending=True, stable=True)[..., :num_chosen]
        else:  # topk is not stable, so the index joins the key
            best = (key.long() * num_blocks + (num_blocks - 1 - block)).topk(num_chosen, dim=-1).indices
    is_candidate = candidate.expand_as(importance).gather(-1, best)
    ascending = torch.where(is_candidate, best, num_blocks).sort(dim=-1).values
    slots = torch.where(ascending == num_blocks, EMPTY_SLOT, ascending)
    return pad(slots, (0, geometry.n_sel - num_chosen), value=EMPTY_SLOT)


class _SelectedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        sizes: "_Sizes",
        reads: ReadCounter | None,
    ) -> Tensor:
        out, norm, counts = _forward(q, k, v, slots, sizes, counts_reads=reads is not None)
        if reads is not None:
            reads.selected = counts
        ctx.save_for_backward(q, k, v, out, norm, slots)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        q, k, v, out, norm, slots = ctx.saved_tensors
        return *_gradients(grad, q, k, v, out, norm, slots, ctx.sizes), None, None, None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    geometry: Geometry,
    is_chosen: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor]:
    """Output and normaliser [B, T, H, 2]."""
    sizes = _sizes(q, k, geometry, num_tile_elements, is_chosen=is_chosen)
    return _forward(q, k, v, slots, sizes, counts_reads=False)[:2]


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    slots: Tensor,
    geometry: Geometry,
    is_chosen: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; the scores are computed again."""
    sizes = _sizes(q, k, geometry, num_tile_elements, is_chosen=is_chosen)
    return _gradients(grad, q, k, v, out, norm, slots, sizes)


@dataclass(frozen=True)
class _Sizes:
    """Tokens of a block, queries that attend densely, and score elements of a tile."""

    block_length: int
    dense: DenseQueries
    budget: int


def _sizes(q: Tensor, k: Tensor, geometry: Geometry, num_tile_elements: int | None, *, is_chosen: bool) -> _Sizes:
    return _Sizes(
        block_length=min(geometry.l_sel, k.shape[1]),  # one longer than the sequence is no longer for it
        dense=DenseQueries.of(q, k, geometry if is_chosen else None),
        budget=tile_budget(q.device, num_tile_elements),
    )


def _forward(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, sizes: _Sizes, *, counts_reads: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, normaliser, and keys read [B, T, G] where they are counted."""
    groups, dense = k.shape[2], sizes.dense
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=accumulation_dtype(q.dtype))
    counts = slots.new_empty(slots.shape[:3], dtype=torch.int64) if counts_reads else None
    if dense.count:
        of_dense = q[:, dense.queries], k[:, dense.keys], v[:, dense.keys]
        found = banded_forward(*of_dense, dense.band, None, counts_reads, sizes.budget)
        if dense.count == q.shape[1]:
            return found.out, found.norm, found.num_reads
        out[:, dense.queries], norm[:, dense.queries] = found.out, found.norm
        if counts is not None and found.num_reads is not None:
            counts[:, dense.queries] = found.num_reads
    k_blocks, v_blocks = _to_blocks(k, sizes.block_length), _to_blocks(v, sizes.block_length)
    for chunk in _chunks(q, k, slots, sizes):
        at = chunk.rows, chunk.queries
        chunk_out, chunk_norm = _attend_chunk(chunk, to_streams(q[at], groups), k_blocks, v_blocks)
        out[at] = from_streams(chunk_out, groups).to(out.dtype)
        norm[at] = from_streams(chunk_norm, groups)
        if counts is not None:
            counts[at] = chunk.num_reads(groups)
    return out, norm, counts


@without_autocast
def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, norm: Tensor, slots: Tensor, sizes: _Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    groups, dense = k.shape[2], sizes.dense
    if dense.count == q.shape[1]:
        return banded_gradients(grad, q, k, v, out, norm, dense.band, sizes.budget)
    grad_q = torch.empty_like(q)
    k_blocks, v_blocks = _to_blocks(k, sizes.block_length), _to_blocks(v, sizes.block_length)
    grad_k = torch.zeros_like(k_blocks, dtype=norm.dtype)
    grad_v = torch.zeros_like(v_blocks, dtype=norm.dtype)
    for chunk in _chunks(q, k, slots, sizes):
        at = chunk.rows, chunk.queries
        terms = row_terms(*(to_streams(x[at], groups) for x in (q, grad.to(q.dtype), out, norm)))
        chunk_grad_q = _attend_chunk_backward(chunk, terms, k_blocks, v_blocks, grad_k, grad_v)
        grad_q[at] = from_streams(chunk_grad_q, groups).to(q.dtype)
    sums = [_from_blocks(grad_k.mul_(key_factor(k_blocks)), k), _from_blocks(grad_v, v)]
    if dense.count:
        grad_q[:, dense.queries], *parts = banded_sums(
            grad[:, dense.queries],
            q[:, dense.queries],
            k[:, dense.keys],
            v[:, dense.keys],
            out[:, dense.queries],
            norm[:, dense.queries],
            dense.band,
            sizes.budget,
        )
        for total, part in zip(sums, parts, strict=True):
            total[:, dense.keys] += part
    return grad_q, sums[0].to(k.dtype), sums[1].to(v.dtype)


@dataclass(frozen=True)
class _Chunk:
    """One chunk of queries, its pairs grouped by block.

    room: how many tokens of its block each tile row may read, [num_tiles, height]; 0 for a row without a query.
    steps: slices of tiles to compute at once.
    """

    rows: slice
    queries: slice
    grouping: Grouping
    room: Tensor
    steps: tuple[slice, ...]

    def ceiling(self, step: slice, table: Tensor) -> Tensor:
        """+inf where a tile row may read a token and −inf elsewhere, [tiles, height, 1, block_length]."""
        return _take(table, self.room[step]).unsqueeze(2)

    def gather(self, table: Tensor, step: slice) -> Tensor:
        """Rows of `table` [num_queries + 1, h, D] as the tiles take them, [tiles, height, h, D]."""
        return _take(table, self.grouping.query[step])

    def part_of(self, table: Tensor, step: slice) -> Tensor:
        """The rows that `step` fills of a table [num_tiles · height + 1, …], by tile: [tiles, height · …, D]."""
        height = self.grouping.query.shape[1]
        rows = table[step.start * height : step.stop * height]
        return rows.view(step.stop - step.start, -1, *table.shape[2:])

    def num_scores(self, heads: int, block_length: int) -> int:
        """Of its largest step."""
        height = self.grouping.query.shape[1]
        return max((step.stop - step.start for step in self.steps), default=0) * height * heads * block_length

    def num_reads(self, groups: int) -> Tensor:
        """Tokens each query may read, over all its slots: [rows, T, G]."""
        per_query = _take(pad(self.room.flatten(), (0, 1)), self.grouping.place).sum(-1)
        return from_streams(per_query.view(-1, self.queries.stop - self.queries.start, 1, 1), groups)[..., 0]


def _chunks(q: Tensor, k: Tensor, slots: Tensor, sizes: _Sizes) -> Iterator[_Chunk]:
    """Cut queries that are not dense into chunks whose table of partial outputs fits the budget, and group each."""
    block_length, budget = sizes.block_length, sizes.budget
    num_rows, num_queries, num_heads, _ = q.shape
    num_tokens, groups = k.shape[1:3]
    first_query, blocks_per_stream = num_tokens - num_queries, -(-num_tokens // block_length)
    queries_per_chunk = max(
        1, _TABLES_PER_TILE * budget // (num_heads * slots.shape[-1] * max(q.shape[-1], k.shape[-1]))
    )
    for queries in split(num_queries, queries_per_chunk, start=sizes.dense.count):
        size = queries.stop - queries.start
        num_seen = -(-(first_query + queries.stop) // block_length)
        for rows in split(num_rows, max(1, queries_per_chunk // size)):
            chosen = slots[rows, queries].transpose(1, 2).flatten(0, 1)  # [streams, T, n]
            stream = torch.arange(chosen.shape[0], device=q.device)[:, None, None]
            height = _tile_height(size * slots.shape[-1] / num_seen, num_heads // groups)
            local = torch.where((chosen >= 0) & (chosen < num_seen), chosen + stream * num_seen, EMPTY_SLOT)
            grouping = group_by_block(local.flatten(0, 1), chosen.shape[0] * num_seen, height)
            block_start = grouping.block % num_seen * block_length
            stop = torch.arange(first_query + queries.start, first_query + queries.stop, device=q.device) + 1
            room = _take(pad(stop.repeat(chosen.shape[0]), (0, 1)), grouping.query) - block_start[:, None]
            room = room.clamp_(0, block_length)
            block = (grouping.block // num_seen + rows.start * groups) * blocks_per_stream + grouping.block % num_seen
            per_step = max(1, budget // (3 * height * num_heads // groups * block_length))
            steps = tuple(split(block.shape[0], per_step))
            yield _Chunk(rows, queries, Grouping(grouping.query, block, grouping.place), room, steps)


def _tile_height(pairs_per_block: float, heads_per_group: int) -> int:
    """A power of two: tall tiles make efficient products, but a block's last tile is half empty on average."""
    tallest = max(1, min(pairs_per_block / 8, _ROWS_PER_PRODUCT / heads_per_group))
    return 1 << int(tallest).bit_length() - 1


def _attend_chunk(chunk: _Chunk, q: Tensor, k_blocks: Tensor, v_blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Output [streams, T, h, Dv] and normaliser [streams, T, h, 2] of queries [streams, T, h, Dk]."""
    streams, num_queries, heads, _ = q.shape
    dtype = accumulation_dtype(q.dtype)
    place, block = chunk.grouping.place, chunk.grouping.block
    num_rows = chunk.grouping.query.numel()
    q = _with_zero_row(scaled(q))
    # One row more than the tiles have, for empty slots to point at: it weighs nothing.
    part = q.new_empty(num_rows + 1, heads, v_blocks.shape[-1], dtype=dtype)
    total, peak = part.new_empty(num_rows + 1, heads), part.new_empty(num_rows + 1, heads)
    part[-1].zero_()
    total[-1].zero_()
    peak[-1].fill_(torch.finfo(dtype).min)
    ceilings = _ceiling_table(k_blocks.shape[1], dtype, q.device)
    room = room_for(chunk.num_scores(heads, k_blocks.shape[1]), q)
    for step in chunk.steps:
        scores = score(chunk.gather(q, step), _take(k_blocks, block[step]), room)
        hide(scores, chunk.ceiling(step, ceilings))
        _, _, step_total, step_peak = attend(scores, _take(v_blocks, block[step]), chunk.part_of(part, step))
        chunk.part_of(total, step).copy_(step_total.flatten(1))
        chunk.part_of(peak, step).copy_(step_peak.flatten(1))
    peaks = _take(peak, place)  # [num_queries, n, h]
    top = peaks.amax(1, keepdim=True)
    factor = (peaks - top).exp2_()
    sum_total = (_take(total, place) * factor).sum(1, keepdim=True)
    weights = factor * torch.where(sum_total == 0, 0, sum_total.reciprocal())
    head = torch.arange(heads, device=q.device)[:, None]
    out = sum_rows(part.flatten(0, 1), (place[:, None] * heads + head).flatten(0, 1), weights.mT.flatten(0, 1))
    shape = streams, num_queries, heads, -1
    return out.view(shape), normaliser(*(x.view(shape) for x in (top, sum_total)))


def _attend_chunk_backward(
    chunk: _Chunk, terms: RowTerms, k_blocks: Tensor, v_blocks: Tensor, grad_k: Tensor, grad_v: Tensor
) -> Tensor:
    """Gradient of q [streams, T, h, Dk]; adds to grad_k, but for `key_factor`, and grad_v, laid out as the blocks are.

    terms: of the chunk's queries, [streams, T, h, D].
    """
    tables = [_with_zero_row(x) for x in terms]
    grad_q = tables[0].new_empty(chunk.grouping.query.numel() + 1, *terms.q.shape[2:], dtype=grad_k.dtype)
    grad_q[-1].zero_()
    ceilings = _ceiling_table(k_blocks.shape[1], grad_k.dtype, grad_q.device)
    rooms = [room_for(chunk.num_scores(terms.q.shape[2], k_blocks.shape[1]), terms.q) for _ in range(2)]
    for step in chunk.steps:
        block = chunk.grouping.block[step]
        of_step = RowTerms(*(chunk.gather(table, step) for table in tables))
        tile_k, tile_v = _take(k_blocks, block), _take(v_blocks, block)
        scores = hide(score(of_step.q, tile_k, rooms[0]), chunk.ceiling(step, ceilings))
        part_of_q = chunk.part_of(grad_q, step)
        _, of_scores, weights = attend_backward(scores, tile_k, tile_v, of_step, rooms[1], part_of_q)
        grad_k.index_add_(0, block, product(of_scores.mT, of_step.q.flatten(1, 2)))
        grad_v.index_add_(0, block, product(weights.mT, of_step.grad.flatten(1, 2)))
    return sum_rows(grad_q.flatten(1), chunk.grouping.place).view(terms.q.shape)


def _ceiling_table(block_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Row r lets the first r tokens of a block be read: +inf for them and −inf for the rest, [length + 1, length]."""
    hidden = torch.ones(block_length + 1, block_length, dtype=torch.bool, device=device).triu()
    return torch.full(hidden.shape, torch.inf, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


def _take(table: Tensor, index: Tensor) -> Tensor:
    """table[index] by whole rows; several times faster on a CPU than advanced indexing."""
    return table.index_select(0, index.flatten()).unflatten(0, index.shape)


def _with_zero_row(x: Tensor) -> Tensor:
    """[streams, T, h, D] -> [streams · T + 1, h, D]; tile rows without a query read the last row."""
    return pad(x.flatten(0, 1), (0, 0, 0, 0, 0, 1))


def _to_blocks(x: Tensor, block_length: int) -> Tensor:
    """[B, S, G, D] -> [B · G · num_blocks, block_length, D], the last block of each sequence filled up with zeros."""
    missing = -x.shape[1] % block_length
    streams = to_streams(x, x.shape[2]).squeeze(2)
    return pad(streams, (0, 0, 0, missing)).unflatten(1, (-1, block_length)).flatten(0, 1)


def _from_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_to_blocks`, in the shape of `like`."""
    num_rows, num_tokens, groups, size = like.shape
    streams = blocks.view(num_rows * groups, -1, 1, size)[:, :num_tokens]
    return from_streams(streams, groups)
