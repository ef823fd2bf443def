"""Which function serves each branch of one call, found once from its routes and passed down."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.backends import Routes
from nsa.ops import traced
from nsa.ops.choice import BlockChoice
from nsa.ops.compress import flash as compress_flash
from nsa.ops.compress import reference as compress_reference
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.gate import reference as gate_reference
from nsa.ops.gate import vectorized as gate_vectorized
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.score import reference as score_reference
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import flash as slide_flash
from nsa.ops.slide import fused as slide_fused
from nsa.ops.slide import reference as slide_reference
from nsa.ops.slide import vectorized as slide_vectorized


class Served(NamedTuple):
    """A function, and what it takes beyond the arguments that every implementation of its branch takes."""

    function: Callable[..., Any]
    more: tuple[Any, ...] = ()


class Serving(NamedTuple):
    """What serves each branch, and the mix.

    compressed(q, k_cmp, v_cmp, geometry, first_query, choose, *more): the output, and the slots chosen, None where
    `choose` is. selected(q, k, v, slots, geometry, *more) and sliding(q, k, v, geometry, *more): the output.
    sliding_packed(q, k, v, geometry, cu_seqlens, max_length): the same of a packed row, None where each of its
    sequences is attended alone. mix(compressed, selected, sliding, gates).
    """

    compressed: Served
    selected: Served
    sliding: Served
    sliding_packed: Callable[..., Tensor] | None
    mix: Callable[..., Tensor]


def serving(routes: Routes, reads: ReadCounter | None, num_tile_elements: int | None, *, is_chosen: bool) -> Serving:
    """The functions that these routes name; what is said of reads and tiles goes to plain torch, which heeds it.

    is_chosen: whether the slots are chosen in this call, not held.
    """
    plain = reads, num_tile_elements
    named = Serving(
        compressed=_compressed(routes.compressed.effective, plain),
        selected=_selected(routes.selected.effective, plain, is_chosen),
        sliding=_sliding(routes.sliding.effective, plain),
        sliding_packed=slide_flash.sliding_attention_packed if routes.sliding.effective == "flash" else None,
        mix=_mix(routes.selected.effective),
    )
    is_traced = torch.compiler.is_compiling() and reads is None
    return _to_trace(named, routes, num_tile_elements, is_chosen) if is_traced else named


def _to_trace(named: Serving, routes: Routes, num_tile_elements: int | None, is_chosen: bool) -> Serving:
    """The same, with an operator of torch for each branch that it serves; the mix is left to the compiler."""

    def of(branch: str, function: Callable[..., Any], otherwise: Served, *more: bool) -> Served:
        effective = getattr(routes, branch).effective
        is_operator = effective in traced.IMPLEMENTATIONS
        return Served(function, (*more, effective, num_tile_elements)) if is_operator else otherwise

    return named._replace(
        compressed=of("compressed", traced.compressed_attention, named.compressed),
        selected=of("selected", traced.selected_attention, named.selected, is_chosen),
        sliding=of("sliding", traced.sliding_attention, named.sliding),
        mix=gate_vectorized.mix if routes.selected.effective == "triton" else named.mix,
    )


def _compressed(effective: str, plain: tuple[Any, ...]) -> Served:
    match effective:
        case "reference":
            return Served(_compressed_by_reference)
        case "flash":
            return Served(_compressed_by_flash)
        case "triton":
            return Served(_compressed_by_triton)
        case _:
            return Served(compress_vectorized.compressed_attention, plain)


def _selected(effective: str, plain: tuple[Any, ...], is_chosen: bool) -> Served:
    match effective:
        case "reference":
            return Served(select_reference.selected_attention)
        case "triton":
            from nsa.ops.select import triton as select_triton  # where there is no Triton no route leads here

            return Served(select_triton.selected_attention, (is_chosen,))
        case _:
            return Served(select_vectorized.selected_attention, (is_chosen, *plain))


def _sliding(effective: str, plain: tuple[Any, ...]) -> Served:
    match effective:
        case "reference":
            return Served(slide_reference.sliding_attention)
        case "fused":
            return Served(slide_fused.sliding_attention)
        case "flash":
            return Served(slide_flash.sliding_attention)
        case "triton":
            from nsa.ops.slide import triton as slide_triton  # where there is no Triton no route leads here

            return Served(slide_triton.sliding_attention)
        case _:
            return Served(slide_vectorized.sliding_attention, plain)


def _mix(effective: str) -> Callable[..., Tensor]:
    """The mix of the kind that serves the selected branch."""
    match effective:
        case "reference":
            return gate_reference.mix
        case "triton":
            from nsa.ops.gate import triton as gate_triton  # where there is no Triton no route leads here

            return gate_triton.mix
        case _:
            return gate_vectorized.mix


def _compressed_by_reference(
    q: Tensor, k_cmp: Tensor, v_cmp: Tensor, geometry: Geometry, first_query: int, choose: BlockChoice | None
) -> tuple[Tensor, Tensor | None]:
    out, probabilities = compress_reference.compressed_attention(q, k_cmp, v_cmp, geometry, first_query)
    if choose is None:
        return out, None
    num_blocks = geometry.num_blocks(first_query + q.shape[1])
    importance = score_reference.block_importance(probabilities, k_cmp.shape[2], num_blocks, geometry)
    return out, select_reference.choose_slots(importance, geometry, first_query)


def _compressed_by_flash(
    q: Tensor, k_cmp: Tensor, v_cmp: Tensor, geometry: Geometry, first_query: int, choose: BlockChoice | None
) -> tuple[Tensor, Tensor | None]:
    out = compress_flash.compressed_attention(q, k_cmp, v_cmp, geometry, first_query)
    if choose is None:
        return out, None
    # flash-attn keeps its probabilities: compute them again, with values of width zero
    scored = q.detach(), k_cmp.detach(), v_cmp[..., :0].detach()
    return out, compress_vectorized.compressed_attention(*scored, geometry, first_query, choose)[1]


def _compressed_by_triton(
    q: Tensor, k_cmp: Tensor, v_cmp: Tensor, geometry: Geometry, first_query: int, choose: BlockChoice | None
) -> tuple[Tensor, Tensor | None]:
    # Where there is no Triton no route leads here.
    from nsa.ops.compress import triton as compress_triton
    from nsa.ops.score import triton as score_triton

    out, norm = compress_triton.compressed_attention(q, k_cmp, v_cmp, geometry, first_query)
    if choose is None:
        return out, None
    return out, score_triton.choose_slots(q, k_cmp, norm, geometry, first_query)
