"""The branches as one operator of torch, which is all that a compiler sees of them: `torch.ops.nsa.attention`.

A compiler traces what leads to a kernel and never the kernel, so that layers compile, export and are checkpointed
whole, at any length. The operator runs what the route names, our Triton kernels or plain torch, with the bits that
it gives eagerly. Called eagerly, the branches do without it: it costs some tenths of a millisecond a call.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsa.autocast import outside_autocast
from nsa.ops.arguments import check_slot_values
from nsa.ops.choice import BlockChoice
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.geometry import Geometry
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import vectorized as slide_vectorized
from nsa.ops.tiles import accumulation_dtype
from nsa.types import CompressedKey, CompressedValue, Key, Output, Query, Slots, Value

IMPLEMENTATIONS = ("vectorized", "triton")  # that the operator runs


def compressed_attention(
    q: Query,
    k_cmp: CompressedKey,
    v_cmp: CompressedValue,
    geometry: Geometry,
    first_query: int,
    choose: BlockChoice | None,
    impl: str,
    num_tile_elements: int | None,
) -> tuple[Output, Slots | None]:
    """The compressed branch, and the slots chosen by it, None where `choose` is."""
    given = _contiguous(q, k_cmp, v_cmp), None, "compressed", impl, _sizes(geometry), first_query
    out, _, slots = _attend(*given[0], *given[1:], choose is not None, num_tile_elements)
    return out, None if choose is None else slots


def selected_attention(
    q: Query,
    k: Key,
    v: Value,
    slots: Slots,
    geometry: Geometry,
    is_chosen: bool,
    impl: str,
    num_tile_elements: int | None,
) -> Output:
    """The selected branch; is_chosen: by slots that are not held."""
    given = *_contiguous(q, k, v), slots.contiguous()
    out: Tensor = _attend(*given, "selected", impl, _sizes(geometry), 0, is_chosen, num_tile_elements)[0]
    return out


def sliding_attention(
    q: Query, k: Key, v: Value, geometry: Geometry, impl: str, num_tile_elements: int | None
) -> Output:
    """The sliding branch."""
    given = *_contiguous(q, k, v), None
    out: Tensor = _attend(*given, "sliding", impl, _sizes(geometry), 0, False, num_tile_elements)[0]
    return out


@torch.library.custom_op("nsa::checked_slots", mutates_args=())
def checked_slots(slots: Tensor, num_blocks: int) -> Tensor:
    """A copy of slots that are a choice among this many blocks; others are refused when the call runs."""
    check_slot_values(slots, num_blocks)
    return slots.clone(memory_format=torch.contiguous_format)


@checked_slots.register_fake
def _(slots: Tensor, num_blocks: int) -> Tensor:
    return slots.new_empty(slots.shape)


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copied before the operator where they are not, so that the copies are what is kept for the backward pass."""
    return tuple(x.contiguous() for x in tensors)


def _sizes(geometry: Geometry) -> list[int]:
    return [geometry.l, geometry.d, geometry.l_sel, geometry.n_sel, geometry.w]


def _geometry(sizes: list[int]) -> Geometry:
    length, stride, l_sel, n_sel, w = sizes
    return Geometry(l=length, d=stride, l_sel=l_sel, n_sel=n_sel, w=w)


@torch.library.custom_op("nsa::attention", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor | None,
    branch: str,
    impl: str,
    sizes: list[int],
    first_query: int,
    chooses: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, normaliser [B, T, H, 2] and slots of one branch; no slots of another than the compressed one.

    sizes: of the geometry. chooses: whether slots are chosen in this call, not held.
    """
    geometry = _geometry(sizes)
    more = _more(branch, impl, slots, geometry, first_query, chooses, num_tile_elements)
    q, k, v = (x.contiguous() for x in (q, k, v))
    chosen: Tensor | None = None
    with outside_autocast(q.device):
        if branch == "compressed" and impl == "vectorized":
            choose = BlockChoice(geometry, first_query) if chooses else None
            out, norm, chosen = compress_vectorized.forward(q, k, v, geometry, first_query, choose, num_tile_elements)
        else:
            out, norm = _implementation(branch, impl).forward(q, k, v, *more)
            if chooses and branch == "compressed":
                from nsa.ops.score import triton as score_triton  # where there is no Triton no route leads here

                chosen = score_triton.choose_slots(q, k, norm, geometry, first_query)
    return out, norm, q.new_empty(0, dtype=torch.int64) if chosen is None else chosen


@_attend.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor | None,
    branch: str,
    impl: str,
    sizes: list[int],
    first_query: int,
    chooses: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    norm = q.new_empty(*q.shape[:3], 2, dtype=accumulation_dtype(q.dtype))
    shape = (*q.shape[:2], k.shape[2], _geometry(sizes).n_sel) if chooses and branch == "compressed" else (0,)
    return out, norm, q.new_empty(shape, dtype=torch.int64)


@torch.library.custom_op("nsa::attention_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    slots: Tensor | None,
    branch: str,
    impl: str,
    sizes: list[int],
    first_query: int,
    chooses: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v of one branch."""
    more = _more(branch, impl, slots, _geometry(sizes), first_query, chooses, num_tile_elements)
    q, k, v = (x.contiguous() for x in (q, k, v))
    found: tuple[Tensor, Tensor, Tensor] = _implementation(branch, impl).gradients(grad, q, k, v, out, norm, *more)
    of_q, of_k, of_v = (x.contiguous() for x in found)  # which compiled code relies on
    return of_q, of_k, of_v


@_gradients.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    slots: Tensor | None,
    branch: str,
    impl: str,
    sizes: list[int],
    first_query: int,
    chooses: bool,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, slots, *ctx.branch = inputs
    out, norm, chosen = output
    ctx.save_for_backward(q, k, v, out, norm, slots)
    ctx.mark_non_differentiable(norm, chosen)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *_others: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 10
    return *_gradients(grad, *ctx.saved_tensors, *ctx.branch), *(None,) * 7


def _refuse_second_derivatives(_ctx: Any, *_grads: Tensor) -> None:
    raise RuntimeError("second derivatives are not computed here; impl='reference' computes them")


_attend.register_autograd(_differentiate, setup_context=_keep)
_gradients.register_autograd(_refuse_second_derivatives)


def _more(
    branch: str,
    impl: str,
    slots: Tensor | None,
    geometry: Geometry,
    first_query: int,
    is_chosen: bool,
    num_tile_elements: int | None,
) -> tuple[Any, ...]:
    """What an implementation's functions take after the tensors that all take."""
    own: dict[str, tuple[Any, ...]] = {
        "compressed": (geometry, first_query),
        "selected": (slots, geometry, is_chosen),
        "sliding": (geometry,),
    }
    return (*own[branch], num_tile_elements) if impl == "vectorized" else own[branch]


def _implementation(branch: str, impl: str) -> ModuleType:
    if impl == "vectorized":
        plain = {"compressed": compress_vectorized, "selected": select_vectorized, "sliding": slide_vectorized}
        return plain[branch]
    # Where there is no Triton no route leads here.
    from nsa.ops.compress import triton as compress_triton
    from nsa.ops.select import triton as select_triton
    from nsa.ops.slide import triton as slide_triton

    kernels = {"compressed": compress_triton, "selected": select_triton, "sliding": slide_triton}
    return kernels[branch]
