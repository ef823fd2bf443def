"""The public operators: check arguments at the door, route, call."""

from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from nsa.autocast import without_autocast
from nsa.backends import BRANCHES, Impl, Routes, route
from nsa.ops.arguments import (
    check_compressed,
    check_phi,
    check_shapes,
    check_slots,
    check_tile_elements,
    packed_lengths,
)
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


@without_autocast
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
    num_tile_elements: int | None = None,
) -> NSAOutput:
    """Native Sparse Attention of the last T of S tokens (arXiv 2502.11089, Eq. 5 to 12).

    q [B, T, H, Dk]; k_cmp [B, C, G, Dk] and v_cmp [B, C, G, Dv], the compressed blocks of all S tokens;
    k_sel [B, S, G, Dk] and v_sel [B, S, G, Dv]; k_win and v_win the same, of the newest tokens at least (the last
    min(S, T + w − 1)); gates [B, T, G, 3] in the order compressed, selected, sliding.

    cu_seqlens: int32 [N + 1]; B = 1 and T = S, and the row holds N sequences one after the other; k_cmp and v_cmp then
    hold each sequence's compressed blocks, concatenated. slots: hold the choice of blocks fixed. impl: see
    `nsa.backends`. reads: counts the keys read; plain torch alone counts, so a named `fused`, `flash` or `reference` is
    refused. num_tile_elements: how many scores plain torch computes at once; None is as many as suit the device. Where
    plain torch serves no branch it is refused. Autocast changes nothing: the tensors are taken in the dtype they have.

    Raises ValueError for arguments that do not fit together and for an `impl` that cannot serve.
    """
    check_shapes(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, geometry)
    if slots is not None:
        check_slots(slots, (q.shape[0], q.shape[1], k_sel.shape[2]), k_sel.shape[1], geometry)
    if reads is not None:
        if impl not in ("auto", "vectorized"):
            raise ValueError(f"impl must be 'auto' or 'vectorized' for reads to be counted, got {impl!r}")
        impl = "vectorized"
    routes = route(q.device, q.dtype, max(q.shape[-1], v_sel.shape[-1]), impl)
    if num_tile_elements is not None:
        check_tile_elements(num_tile_elements, [getattr(routes, branch).effective for branch in BRANCHES])
    plain = reads, num_tile_elements
    if cu_seqlens is None:
        check_compressed(k_cmp, [k_sel.shape[1]], geometry)
        compressed, selected, slots = _sparse(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, routes, plain)
        sliding = _sliding(q, k_win, v_win, geometry, routes, plain)
    else:
        if reads is not None:
            raise ValueError("reads are counted for one sequence per row, got cu_seqlens")
        lengths = packed_lengths(cu_seqlens, q, k_sel, k_win)
        check_compressed(k_cmp, lengths, geometry)
        sparse = _sparse_packed(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, routes, plain, lengths)
        compressed, selected, slots = sparse
        sliding = _sliding_packed(q, k_win, v_win, geometry, routes, plain, cu_seqlens, lengths)
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

    phi and its weights: `avg` none; `mlp` position [l, D], w1 [hidden, l·D], b1, w2 [D, hidden], b2; `conv` kernel
    [D, l], w [D, D], b [D]. With cu_seqlens, the blocks of each packed sequence, concatenated. impl `reference` is the
    oracle; under any other name plain torch compresses, since no kernel does.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}")
    if phi not in _PHI:
        raise ValueError(f"phi must be one of {', '.join(_PHI)}, got {phi!r}")
    check_phi(x, phi, weights, geometry)
    if cu_seqlens is not None:
        parts = x.split(packed_lengths(cu_seqlens, x), dim=1)
        return torch.cat([compress_tokens(part, geometry, phi, weights, impl=impl) for part in parts], dim=1)
    reference, vectorized = _PHI[phi]
    if impl == "reference":
        return compress_reference.compress(x, lambda block: reference(block, *weights), geometry)
    return vectorized(x, geometry, *weights)


_Phi = Callable[..., Tensor]
_PHI: dict[str, tuple[_Phi, _Phi]] = {
    "avg": (compress_reference.phi_avg, compress_vectorized.compress_avg),
    "mlp": (compress_reference.phi_mlp, compress_vectorized.compress_mlp),
    "conv": (compress_reference.phi_conv, compress_vectorized.compress_conv),
}


_Plain = tuple[ReadCounter | None, int | None]
"""What plain torch alone takes: who counts its reads, and how many scores it computes at once."""


def _sparse(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    routes: Routes,
    plain: _Plain,
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
            scored = q.detach(), k_cmp.detach(), v_cmp[..., :0].detach()
            compress_vectorized.compressed_attention(*scored, geometry, first_query, visit)
    elif routes.compressed.effective == "triton":
        from nsa.ops.compress import triton as compress_triton  # where there is no Triton no route leads here

        compressed = compress_triton.compressed_attention(q, k_cmp, v_cmp, geometry, first_query, visit)
    else:
        compressed = compress_vectorized.compressed_attention(q, k_cmp, v_cmp, geometry, first_query, visit, *plain)
    slots = choice.slots if choice is not None else slots
    assert slots is not None
    return compressed, _selected(q, k_sel, v_sel, slots, geometry, routes, plain), slots


def _selected(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, routes: Routes, plain: _Plain
) -> Tensor:
    if routes.selected.effective != "triton":
        return select_vectorized.selected_attention(q, k, v, slots, geometry, *plain)
    from nsa.ops.select import triton as select_triton  # where there is no Triton no route leads here

    return select_triton.selected_attention(q, k, v, slots, geometry)


class _Choice:
    """Chooses blocks a tile at a time, as the compressed branch computes the probabilities it chooses by."""

    def __init__(self, q: Tensor, k_sel: Tensor, geometry: Geometry) -> None:
        self._geometry = geometry
        self._first_query = k_sel.shape[1] - q.shape[1]
        shape = q.shape[0], q.shape[1], k_sel.shape[2], geometry.n_sel
        # A query in a tile that sees no compressed block is younger than l <= l_sel tokens: it has block 0 alone.
        self.slots = torch.full(shape, EMPTY_SLOT, dtype=torch.int64, device=q.device)
        self.slots[..., 0].zero_()

    def visit(self, rows: slice, queries: slice, probabilities: Tensor) -> None:
        num_blocks = self._geometry.num_blocks(self._first_query + queries.stop)
        if num_blocks == 1:
            return  # nothing to choose, and its strides may be far more than there are tokens
        importance = score_vectorized.group_importance(probabilities, num_blocks, self._geometry)
        first = self._first_query + queries.start
        self.slots[rows, queries] = select_vectorized.choose_slots(importance, self._geometry, first)


def _sliding(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, routes: Routes, plain: _Plain) -> Tensor:
    served = routes.sliding.effective
    if served == "vectorized":
        return slide_vectorized.sliding_attention(q, k, v, geometry, *plain)
    return _SLIDING[served].sliding_attention(q, k, v, geometry)


_SLIDING = {"reference": slide_reference, "fused": slide_fused, "flash": slide_flash}


def _sparse_packed(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    routes: Routes,
    plain: _Plain,
    lengths: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """`_sparse` for each sequence of a packed row: sequences share nothing, so none needs the other's mask."""
    num_compressed = [geometry.num_compressed(length) for length in lengths]
    per_token = [x.split(lengths, 1) for x in (q, k_sel, v_sel)]
    per_block = [x.split(num_compressed, 1) for x in (k_cmp, v_cmp)]
    held = [None] * len(lengths) if slots is None else slots.split(lengths, 1)
    for chosen, length in zip(held, lengths, strict=True):
        if chosen is not None:
            check_slots(chosen, (1, length, k_sel.shape[2]), length, geometry)
    parts = [
        _sparse(part_q, part_k_cmp, part_v_cmp, part_k, part_v, geometry, part_slots, routes, plain)
        for part_q, part_k, part_v, part_k_cmp, part_v_cmp, part_slots in zip(*per_token, *per_block, held, strict=True)
        if part_q.shape[1]
    ]
    compressed, selected, chosen_slots = zip(*parts, strict=True)
    return torch.cat(compressed, 1), torch.cat(selected, 1), torch.cat(chosen_slots, 1)


def _sliding_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    geometry: Geometry,
    routes: Routes,
    plain: _Plain,
    cu_seqlens: Tensor,
    lengths: list[int],
) -> Tensor:
    if routes.sliding.effective == "flash":
        return slide_flash.sliding_attention_packed(q, k, v, geometry, cu_seqlens.to(q.device), max(lengths))
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    outputs = [
        _sliding(part_q, part_k, part_v, geometry, routes, plain) for part_q, part_k, part_v in parts if part_q.shape[1]
    ]
    return torch.cat(outputs, 1)
