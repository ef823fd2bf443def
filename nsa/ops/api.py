"""The public operators: check arguments at the door, route, call."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.backends import Impl, Routes, route
from nsa.ops.compress import flash as compress_flash
from nsa.ops.compress import reference as compress_reference
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.gate import reference as gate_reference
from nsa.ops.gate import vectorized as gate_vectorized
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.score import reference as score_reference
from nsa.ops.score import vectorized as score_vectorized
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import flash as slide_flash
from nsa.ops.slide import fused as slide_fused
from nsa.ops.slide import reference as slide_reference
from nsa.ops.slide import vectorized as slide_vectorized
from nsa.types import CompressedKey, CompressedValue, CuSeqlens, GateWeights, Key, Output, Query, Slots, Value


class NSAOutput(NamedTuple):
    """The mixed output, each branch's own [B, T, H, Dv], and the slots chosen [B, T, G, n_sel]."""

    out: Output
    compressed: Output
    selected: Output
    sliding: Output
    slots: Slots


def nsa_attention(
    q: Query,
    k_cmp: CompressedKey,
    v_cmp: CompressedValue,
    k_sel: Key,
    v_sel: Value,
    k_win: Tensor,
    v_win: Tensor,
    gates: GateWeights,
    geometry: Geometry,
    *,
    cu_seqlens: CuSeqlens | None = None,
    slots: Slots | None = None,
    impl: Impl = "auto",
    reads: ReadCounter | None = None,
) -> NSAOutput:
    """Native Sparse Attention of the last T of S tokens (arXiv 2502.11089, Eq. 5 to 12).

    q [B, T, H, Dk]; k_cmp [B, C, G, Dk] and v_cmp [B, C, G, Dv], the compressed blocks of all S tokens; k_sel [B, S, G, Dk]
    and v_sel [B, S, G, Dv]; k_win and v_win the same, of the newest tokens at least (the last min(S, T + w − 1));
    gates [B, T, G, 3] in the order compressed, selected, sliding.

    cu_seqlens: int32 [N + 1]; B = 1 and T = S, and the row holds N sequences one after the other; k_cmp and v_cmp then hold
    each sequence's compressed blocks, concatenated. slots: hold the choice of blocks fixed. impl: see `nsa.backends`.
    reads: counts the keys read; plain torch alone counts, so a named `fused`, `flash` or `reference` is refused.

    Raises ValueError for arguments that do not fit together and for an `impl` that cannot serve.
    """
    _check_shapes(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, geometry)
    if slots is not None:
        _check_slots(slots, q, k_sel, geometry)
    if reads is not None:
        if impl not in ("auto", "vectorized"):
            raise ValueError(f"impl must be 'auto' or 'vectorized' for reads to be counted, got {impl!r}")
        impl = "vectorized"
    routes = route(q.device, q.dtype, max(q.shape[-1], v_sel.shape[-1]), impl)
    if cu_seqlens is None:
        _check_compressed(k_cmp, [k_sel.shape[1]], geometry)
        compressed, selected, slots = _sparse(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, routes, reads)
        sliding = _sliding(q, k_win, v_win, geometry, routes, reads)
    else:
        if reads is not None:
            raise ValueError("reads are counted for one sequence per row, got cu_seqlens")
        lengths = _packed_lengths(cu_seqlens, q, k_sel, k_win)
        _check_compressed(k_cmp, lengths, geometry)
        compressed, selected, slots = _sparse_packed(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, routes, lengths)
        sliding = _sliding_packed(q, k_win, v_win, geometry, routes, cu_seqlens, lengths)
    mix = gate_reference.mix if routes.selected.effective == "reference" else gate_vectorized.mix
    return NSAOutput(mix(compressed, selected, sliding, gates), compressed, selected, sliding, slots)


def compress_tokens(
    x: Tensor,
    geometry: Geometry,
    phi: str = "avg",
    weights: tuple[Tensor, ...] = (),
    *,
    cu_seqlens: CuSeqlens | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """One compressed token per complete block (Eq. 7): [B, S, G, D] -> [B, C, G, D].

    phi and its weights: `avg` none; `mlp` position [l, D], w1 [hidden, l·D], b1, w2 [D, hidden], b2; `conv` kernel [D, l],
    w [D, D], b [D]. With cu_seqlens, the blocks of each packed sequence, concatenated.
    """
    if phi not in _PHI:
        raise ValueError(f"phi must be one of {', '.join(_PHI)}, got {phi!r}")
    if cu_seqlens is not None:
        parts = x.split(_packed_lengths(cu_seqlens, x), dim=1)
        return torch.cat([compress_tokens(part, geometry, phi, weights, impl=impl) for part in parts], dim=1)
    reference, vectorized = _PHI[phi]
    if impl == "reference":
        return compress_reference.compress(x, lambda block: reference(block, *weights), geometry)
    return vectorized(x, geometry, *weights)


_PHI = {
    "avg": (compress_reference.phi_avg, compress_vectorized.compress_avg),
    "mlp": (compress_reference.phi_mlp, compress_vectorized.compress_mlp),
    "conv": (compress_reference.phi_conv, compress_vectorized.compress_conv),
}


def _sparse(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    routes: Routes,
    reads: ReadCounter | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The compressed branch, the choice it makes unless `slots` holds it, and the selected branch."""
    first_query = k_sel.shape[1] - q.shape[1]
    if routes.compressed.effective == "reference":
        compressed, probabilities = compress_reference.compressed_attention(q, k_cmp, v_cmp, geometry, first_query)
        if slots is None:
            num_blocks = geometry.num_blocks(k_sel.shape[1])
            importance = score_reference.block_importance(probabilities, k_sel.shape[2], num_blocks, geometry)
            slots = select_reference.choose_slots(importance, geometry, first_query)
        return compressed, select_reference.selected_attention(q, k_sel, v_sel, slots, geometry), slots
    choice = _Choice(q, k_sel, geometry) if slots is None else None
    visit = None if choice is None else choice.visit
    if routes.compressed.effective == "flash":
        compressed = compress_flash.compressed_attention(q, k_cmp, v_cmp, geometry, first_query)
        if visit is not None:  # flash-attn keeps its probabilities: compute them again, with values of width zero
            scored = (x.detach() for x in (q, k_cmp, v_cmp[..., :0]))
            compress_vectorized.compressed_attention(*scored, geometry, first_query, visit)
    else:
        compressed = compress_vectorized.compressed_attention(q, k_cmp, v_cmp, geometry, first_query, visit, reads)
    slots = choice.slots if choice is not None else slots
    assert slots is not None
    return compressed, select_vectorized.selected_attention(q, k_sel, v_sel, slots, geometry, reads), slots


class _Choice:
    """Chooses blocks a tile at a time, as the compressed branch computes the probabilities it chooses by."""

    def __init__(self, q: Tensor, k_sel: Tensor, geometry: Geometry) -> None:
        self._geometry = geometry
        self._first_query = k_sel.shape[1] - q.shape[1]
        shape = q.shape[0], q.shape[1], k_sel.shape[2], geometry.n_sel
        # A query in a tile that sees no compressed block is younger than l <= l_sel tokens: it has block 0 alone.
        self.slots = torch.full(shape, EMPTY_SLOT, dtype=torch.int64, device=q.device)
        self.slots[..., 0] = 0

    def visit(self, rows: slice, queries: slice, probabilities: Tensor) -> None:
        num_blocks = self._geometry.num_blocks(self._first_query + queries.stop)
        importance = score_vectorized.group_importance(probabilities, num_blocks, self._geometry)
        first = self._first_query + queries.start
        self.slots[rows, queries] = select_vectorized.choose_slots(importance, self._geometry, first)


def _sliding(
    q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, routes: Routes, reads: ReadCounter | None = None
) -> Tensor:
    match routes.sliding.effective:
        case "reference":
            return slide_reference.sliding_attention(q, k, v, geometry)
        case "fused":
            return slide_fused.sliding_attention(q, k, v, geometry)
        case "flash":
            return slide_flash.sliding_attention(q, k, v, geometry)
        case "vectorized":
            return slide_vectorized.sliding_attention(q, k, v, geometry, reads)


def _sparse_packed(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    routes: Routes,
    lengths: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """`_sparse` for each sequence of a packed row: sequences share nothing, so none needs the other's mask."""
    num_compressed = [geometry.num_compressed(length) for length in lengths]
    per_sequence = zip(
        q.split(lengths, 1),
        k_cmp.split(num_compressed, 1),
        v_cmp.split(num_compressed, 1),
        k_sel.split(lengths, 1),
        v_sel.split(lengths, 1),
        [None] * len(lengths) if slots is None else slots.split(lengths, 1),
        strict=True,
    )
    parts = [
        _sparse(*tensors, geometry, chosen, routes, None) for *tensors, chosen in per_sequence if tensors[0].shape[1]
    ]
    compressed, selected, chosen_slots = zip(*parts, strict=True)
    return torch.cat(compressed, 1), torch.cat(selected, 1), torch.cat(chosen_slots, 1)


def _sliding_packed(
    q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, routes: Routes, cu_seqlens: Tensor, lengths: list[int]
) -> Tensor:
    if routes.sliding.effective == "flash":
        return slide_flash.sliding_attention_packed(q, k, v, geometry, cu_seqlens.to(q.device), max(lengths))
    parts = zip(*(x.split(lengths, 1) for x in (q, k, v)), strict=True)
    return torch.cat([_sliding(*part, geometry, routes) for part in parts if part[0].shape[1]], 1)


def _check_shapes(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    geometry: Geometry,
) -> None:
    named = {"k_cmp": k_cmp, "v_cmp": v_cmp, "k_sel": k_sel, "v_sel": v_sel, "k_win": k_win, "v_win": v_win}
    for name, x in {"q": q, **named, "gates": gates}.items():
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions, got shape {list(x.shape)}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
        if name != "gates" and (x.dtype != q.dtype or not x.dtype.is_floating_point):
            raise ValueError(f"{name} must have the floating dtype of q, {q.dtype}, got {x.dtype}")
    rows, num_queries, num_heads, d_k = q.shape
    _, num_tokens, groups, d_v = v_sel.shape
    if num_queries < 1 or num_queries > num_tokens:
        raise ValueError(f"q must have 1 to {num_tokens} tokens, as many as k_sel at most, got {num_queries}")
    if groups < 1 or num_heads % groups:
        raise ValueError(f"q must have a multiple of the {groups} kv groups as heads, got {num_heads}")
    newest = min(num_tokens, num_queries + geometry.w - 1)
    if not newest <= k_win.shape[1] <= num_tokens:
        raise ValueError(f"k_win must have {newest} to {num_tokens} tokens, got {k_win.shape[1]}")
    lengths = {"cmp": k_cmp.shape[1], "sel": num_tokens, "win": k_win.shape[1]}
    for name, x in named.items():
        expected = [rows, lengths[name[2:]], groups, d_k if name[0] == "k" else d_v]
        if list(x.shape) != expected:
            raise ValueError(f"{name} must have shape {expected}, got {list(x.shape)}")
    if list(gates.shape) != [rows, num_queries, groups, 3]:
        raise ValueError(f"gates must have shape {[rows, num_queries, groups, 3]}, got {list(gates.shape)}")


def _check_compressed(k_cmp: Tensor, lengths: Sequence[int], geometry: Geometry) -> None:
    expected = sum(geometry.num_compressed(length) for length in lengths)
    if k_cmp.shape[1] != expected:
        raise ValueError(f"k_cmp must have {expected} compressed blocks, got {k_cmp.shape[1]}")


def _check_slots(slots: Tensor, q: Tensor, k_sel: Tensor, geometry: Geometry) -> None:
    expected = [q.shape[0], q.shape[1], k_sel.shape[2]]
    if slots.ndim != 4 or list(slots.shape[:3]) != expected or slots.is_floating_point() or slots.is_complex():
        raise ValueError(f"slots must be integers of shape {[*expected, 'n']}, got {slots.dtype} {list(slots.shape)}")
    num_blocks = geometry.num_blocks(k_sel.shape[1])
    if bool(((slots < EMPTY_SLOT) | (slots >= num_blocks)).any()):
        raise ValueError(
            f"slots must be {EMPTY_SLOT} or in [0, {num_blocks}), got {int(slots.min())} to {int(slots.max())}"
        )
    ordered = slots.sort(-1).values
    if bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] != EMPTY_SLOT)).any()):
        raise ValueError("slots must name a block once per query, got a block twice")


def _packed_lengths(cu_seqlens: Tensor, *packed: Tensor) -> list[int]:
    """Lengths of the sequences packed in one row; raises ValueError unless cu_seqlens describes exactly that row."""
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens must be int32 [N + 1], got {cu_seqlens.dtype} {list(cu_seqlens.shape)}")
    for x in packed:
        if x.shape[0] != 1 or x.shape[1] != packed[0].shape[1]:
            raise ValueError(
                f"packed tensors must have one row of {packed[0].shape[1]} tokens, got {list(x.shape[:2])}"
            )
    offsets: list[int] = cu_seqlens.tolist()
    lengths = [after - before for before, after in zip(offsets[:-1], offsets[1:], strict=True)]
    if offsets[0] != 0 or offsets[-1] != packed[0].shape[1] or min(lengths) < 0:
        shown = offsets if len(offsets) <= 8 else [*offsets[:4], "...", *offsets[-3:]]
        raise ValueError(f"cu_seqlens must start at 0, never fall and end at {packed[0].shape[1]}, got {shown}")
    return lengths
