"""The selected branch one equation at a time (arXiv 2502.11089, Eq. 11 and 12): right on the CPU in float64, not fast.

A query is attended over exactly the tokens it reads. No mask is applied, so nothing else can reach it, not even a NaN,
and a query that reads no token sums over nothing: exactly zero, forward and backward.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.types import Key, Output, Query, Slots, Value

Importance = Float[Tensor, "B T G num_blocks"]


def choose_slots(importance: Importance, geometry: Geometry, first_query: int) -> Slots:
    """Eq. 11 for every query: n_sel slots, ascending, −1 for empty ones; an integer, so no gradient passes.

    Query i has position first_query + i.
    """
    num_queries, num_blocks = importance.shape[1], importance.shape[-1]
    needed = geometry.num_blocks(first_query + num_queries)
    if num_blocks < needed:
        raise ValueError(f"importance must score the {needed} blocks the last query may choose, got {num_blocks}")
    slots = [
        [[chosen_blocks(scores, geometry, first_query + index) for scores in query] for index, query in enumerate(row)]
        for row in importance.tolist()
    ]
    padded = [[[c + [EMPTY_SLOT] * (geometry.n_sel - len(c)) for c in query] for query in row] for row in slots]
    return torch.tensor(padded, dtype=torch.int64, device=importance.device)


def chosen_blocks(scores: Sequence[float], geometry: Geometry, position: int) -> list[int]:
    """Eq. 11 for one query and group: the forced blocks, then those of highest score, the lower index at ties.

    Candidates start at or before the query's position; at most n_sel of them are chosen, in ascending order.
    """
    candidates = range(position // geometry.l_sel + 1)
    forced = geometry.forced_blocks(position)
    ranked = sorted((j for j in candidates if j not in forced), key=lambda j: (-scores[j], j))
    return sorted([*forced, *ranked[: geometry.n_sel - len(forced)]])


def selected_attention(q: Query, k: Key, v: Value, slots: Slots, geometry: Geometry) -> Output:
    """The selected branch's term of Eq. 5: every query over the tokens of its blocks, up to its own position.

    The T queries are the last of the S tokens. Slots may come in any order; one given twice is read once.
    Raises ValueError for a slot that is neither −1 nor a block.
    """
    (num_rows, num_queries), (num_tokens, num_groups) = q.shape[:2], k.shape[1:3]
    slots, num_blocks = slots.long(), geometry.num_blocks(num_tokens)
    bad = (slots < EMPTY_SLOT) | (slots >= num_blocks)
    if bool(bad.any()):
        raise ValueError(f"slots must be {EMPTY_SLOT} or in [0, {num_blocks}), got {slots[bad][0]}")
    queries = _wide(q).unflatten(2, (num_groups, -1))  # [B, T, G, h, Dk]
    rows = []
    for b in range(num_rows):
        groups = []
        for g in range(num_groups):
            k_blocks, v_blocks = (_wide(x[b, :, g]).split(geometry.l_sel) for x in (k, v))
            outputs = []
            for i, query in enumerate(queries[b, :, g].unbind(0)):
                position, chosen = num_tokens - num_queries + i, slots[b, i, g].tolist()
                keys = selected_tokens(k_blocks, chosen, position, geometry)
                values = selected_tokens(v_blocks, chosen, position, geometry)
                outputs.append(_attend(query, keys, values))
            groups.append(torch.stack(outputs))
        rows.append(torch.stack(groups, dim=1))
    return torch.stack(rows).flatten(2, 3).to(q.dtype)


def selected_tokens(blocks: Sequence[Tensor], slots: Sequence[int], position: int, geometry: Geometry) -> list[Tensor]:
    """Eq. 12 for one query and group: its chosen blocks, each cut after the query's own position.

    The parts are views, left for `_attend` to concatenate: a copy of every query's keys would fill the memory.
    """
    parts = [blocks[0][:0]]  # the sum over no tokens, for a query that reads none
    for slot in sorted(set(slots) - {EMPTY_SLOT}):
        num_readable = max(0, position + 1 - slot * geometry.l_sel)
        parts.append(blocks[slot][:num_readable])
    return parts


def _attend(query: Float[Tensor, "h Dk"], keys: list[Tensor], values: list[Tensor]) -> Float[Tensor, "h Dv"]:
    """Eq. 2 for one query and group: softmax(q·K / √Dk)·V, where K = Cat(keys) and V = Cat(values)."""
    scores = torch.cat([query @ part.T for part in keys], dim=-1) / math.sqrt(query.shape[-1])
    probabilities = scores.softmax(-1).split([len(part) for part in values], dim=-1)
    terms = [p @ part for p, part in zip(probabilities, values, strict=True)]
    return torch.stack(terms).sum(0)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
