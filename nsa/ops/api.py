"""The public operators: check arguments at the door, route, call."""

from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from nsa.autocast import outside_autocast
from nsa.backends import BRANCHES, Impl, Routes, route
from nsa.ops import traced
from nsa.ops.arguments import (
    check_compressed,
    check_phi,
    check_shapes,
    check_slots,
    check_tile_elements,
    packed_lengths,
)
from nsa.ops.choice import BlockChoice
from nsa.ops.compress import reference as compress_reference
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.serving import Serving, serving
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
    impl: Impl | Routes = "auto",
    reads: ReadCounter | None = None,
    num_tile_elements: int | None = None,
) -> NSAOutput:
    """Native Sparse Attention of the last T of S tokens (arXiv 2502.11089, Eq. 5 to 12).

    q [B, T, H, Dk]; k_cmp [B, C, G, Dk] and v_cmp [B, C, G, Dv], the compressed blocks of all S tokens;
    k_sel [B, S, G, Dk] and v_sel [B, S, G, Dv]; k_win and v_win the same, of the newest tokens at least (the last
    min(S, T + w − 1)); gates [B, T, G, 3] in the order compressed, selected, sliding.

    cu_seqlens: int32 [N + 1]; B = 1 and T = S, and the row holds N sequences one after the other; k_cmp and v_cmp then
    hold each sequence's compressed blocks, concatenated. slots: hold the choice of blocks fixed. impl: see
    `nsa.backends`, whose routes may be given in its place. reads: counts the keys read; plain torch
    alone counts, so a named `fused`, `flash` or `reference` is refused. num_tile_elements: how many scores plain torch
    computes at once; None is as many as suit the device. Where plain torch serves no branch it is refused. Autocast
    changes nothing: the tensors are taken in the dtype they have.

    Raises ValueError for arguments that do not fit together and for an `impl` that cannot serve.
    """
    check_shapes(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, geometry)
    if slots is not None:
        check_slots(slots, (q.shape[0], q.shape[1], k_sel.shape[2]), k_sel.shape[1], geometry)
        if torch.compiler.is_compiling():
            slots = traced.checked_slots(slots, geometry.num_blocks(k_sel.shape[1]))
    lengths = None if cu_seqlens is None else packed_lengths(cu_seqlens, q, k_sel, k_win)
    by = _served(q, max(q.shape[-1], v_sel.shape[-1]), impl, reads, num_tile_elements, is_chosen=slots is None)
    with outside_autocast(q.device):
        if cu_seqlens is None or lengths is None:
            check_compressed(k_cmp, [k_sel.shape[1]], geometry)
            compressed, selected, slots = _sparse(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, by)
            sliding = by.sliding.function(q, k_win, v_win, geometry, *by.sliding.more)
        else:
            if reads is not None:
                raise ValueError("reads are counted for one sequence per row, got cu_seqlens")
            check_compressed(k_cmp, lengths, geometry)
            sparse = _sparse_packed(q, k_cmp, v_cmp, k_sel, v_sel, geometry, slots, by, lengths)
            compressed, selected, slots = sparse
            sliding = _sliding_packed(q, k_win, v_win, geometry, by, cu_seqlens, lengths)
        return NSAOutput(by.mix(compressed, selected, sliding, gates), compressed, selected, sliding, slots)


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


def _served(
    q: Tensor,
    head_size: int,
    impl: Impl | Routes,
    reads: ReadCounter | None,
    num_tile_elements: int | None,
    is_chosen: bool,
) -> Serving:
    """What serves each branch of a call: routed here, once, where the caller has not done it."""
    if reads is not None:
        if not isinstance(impl, Routes) and impl not in ("auto", "vectorized"):
            raise ValueError(f"impl must be 'auto' or 'vectorized' for reads to be counted, got {impl!r}")
        impl = "vectorized"
    routes = impl if isinstance(impl, Routes) else route(q.device, q.dtype, head_size, impl)
    if num_tile_elements is not None:
        check_tile_elements(num_tile_elements, [getattr(routes, branch).effective for branch in BRANCHES])
    return serving(routes, reads, num_tile_elements, is_chosen=is_chosen)


def _sparse(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    by: Serving,
) -> tuple[Tensor, Tensor, Tensor]:
    """The compressed branch, the choice it makes unless `slots` holds it, and the selected branch."""
    first_query = k_sel.shape[1] - q.shape[1]
    choose = BlockChoice(geometry, first_query) if slots is None else None
    compressed, chosen = by.compressed.function(q, k_cmp, v_cmp, geometry, first_query, choose, *by.compressed.more)
    slots = chosen if slots is None else slots
    assert slots is not None
    return compressed, by.selected.function(q, k_sel, v_sel, slots, geometry, *by.selected.more), slots


def _sparse_packed(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    geometry: Geometry,
    slots: Tensor | None,
    by: Serving,
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
    parts = []
    for part_q, part_k, part_v, part_k_cmp, part_v_cmp, part_slots in zip(*per_token, *per_block, held, strict=True):
        if part_q.shape[1]:
            parts.append(_sparse(part_q, part_k_cmp, part_v_cmp, part_k, part_v, geometry, part_slots, by))
    compressed, selected, chosen_slots = zip(*parts, strict=True)
    return torch.cat(compressed, 1), torch.cat(selected, 1), torch.cat(chosen_slots, 1)


def _sliding_packed(
    q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, by: Serving, cu_seqlens: Tensor, lengths: list[int]
) -> Tensor:
    if by.sliding_packed is not None:
        return by.sliding_packed(q, k, v, geometry, cu_seqlens.to(q.device), max(lengths))
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    outputs = [
        by.sliding.function(part_q, part_k, part_v, geometry, *by.sliding.more)
        for part_q, part_k, part_v in parts
        if part_q.shape[1]
    ]
    return torch.cat(outputs, 1)
