"""What `nsa.ops.api` asks of its arguments; ValueError names the argument, what fits and what came."""

from collections.abc import Collection, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from nsa.ops.geometry import EMPTY_SLOT, Geometry

_SLOT_DTYPES = (torch.int32, torch.int64)


def check_shapes(
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
    """Refuse tensors of `nsa_attention` that do not fit together."""
    named = {"k_cmp": k_cmp, "v_cmp": v_cmp, "k_sel": k_sel, "v_sel": v_sel, "k_win": k_win, "v_win": v_win}
    for name, x in {"q": q, **named, "gates": gates}.items():
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions, got shape {list(x.shape)}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
        if name != "gates" and (x.dtype != q.dtype or not x.dtype.is_floating_point):
            raise ValueError(f"{name} must have the floating dtype of q, {q.dtype}, got {x.dtype}")
        if name != "k_cmp" and name != "v_cmp" and 0 in x.shape:
            raise ValueError(f"{name} must have no empty dimension, got shape {list(x.shape)}")
    if not gates.is_floating_point():
        raise ValueError(f"gates must be floating, got {gates.dtype}")
    rows, num_queries, num_heads, d_k = q.shape
    _, num_tokens, groups, d_v = v_sel.shape
    if num_queries < 1 or num_queries > num_tokens:
        raise ValueError(f"q must have 1 to {num_tokens} tokens, as many as k_sel at most, got {num_queries}")
    if groups < 1 or num_heads % groups:
        raise ValueError(f"q must have a multiple of the {groups} kv groups as heads, got {num_heads}")
    num_seen = num_queries + geometry.w - 1  # by the window of any query, were there as many tokens
    if k_win.shape[1] > num_tokens or (k_win.shape[1] < num_tokens and k_win.shape[1] < num_seen):
        newest = min(num_tokens, num_seen)
        raise ValueError(f"k_win must have {newest} to {num_tokens} tokens, got {k_win.shape[1]}")
    lengths = {"cmp": k_cmp.shape[1], "sel": num_tokens, "win": k_win.shape[1]}
    for name, x in named.items():
        expected = [rows, lengths[name[2:]], groups, d_k if name[0] == "k" else d_v]
        if list(x.shape) != expected:
            raise ValueError(f"{name} must have shape {expected}, got {list(x.shape)}")
    if list(gates.shape) != [rows, num_queries, groups, 3]:
        raise ValueError(f"gates must have shape {[rows, num_queries, groups, 3]}, got {list(gates.shape)}")


def check_compressed(k_cmp: Tensor, lengths: Sequence[int], geometry: Geometry) -> None:
    """Refuse any number of compressed blocks but that of sequences of these lengths."""
    expected = sum(geometry.num_compressed(length) for length in lengths)
    if k_cmp.shape[1] != expected:
        raise ValueError(f"k_cmp must have {expected} compressed blocks, got {k_cmp.shape[1]}")


def check_tile_elements(num_tile_elements: int, served: Collection[str]) -> None:
    """Refuse a number of scores at once that is none, or that nobody heeds."""
    if num_tile_elements < 1:
        raise ValueError(f"num_tile_elements must be at least 1, got {num_tile_elements}")
    if "vectorized" not in served:
        raise ValueError(
            f"num_tile_elements is for plain torch, and the branches are served by {', '.join(sorted(set(served)))}"
        )


def check_slots(slots: Tensor, shape: tuple[int, int, int], num_tokens: int, geometry: Geometry) -> None:
    """Refuse slots that are no choice among the blocks of `num_tokens` for [B, T, G] = `shape`.

    They are out of range, or a query names a block twice.
    """
    if slots.ndim != 4 or tuple(slots.shape[:3]) != shape or slots.shape[3] < 1 or slots.dtype not in _SLOT_DTYPES:
        raise ValueError(
            f"slots must be int32 or int64 of shape {[*shape, 'n']}, got {slots.dtype} {list(slots.shape)}"
        )
    if not torch.compiler.is_compiling():  # the compiler knows no values; see `nsa.ops.traced.checked_slots`
        check_slot_values(slots, geometry.num_blocks(num_tokens))


def check_slot_values(slots: Tensor, num_blocks: int) -> None:
    """Refuse slots that are no choice among this many blocks."""
    if bool(((slots < EMPTY_SLOT) | (slots >= num_blocks)).any()):
        raise ValueError(
            f"slots must be {EMPTY_SLOT} or in [0, {num_blocks}), got {int(slots.min())} to {int(slots.max())}"
        )
    ordered = slots.sort(-1).values
    if bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] != EMPTY_SLOT)).any()):
        raise ValueError("slots must name a block once per query, got a block twice")


def check_phi(x: Tensor, phi: str, weights: Sequence[Tensor], geometry: Geometry) -> None:
    """Refuse weights that are not those of `phi` for tokens [B, S, G, D]."""
    if x.ndim != 4:
        raise ValueError(f"x must have 4 dimensions, got shape {list(x.shape)}")
    size, hidden = x.shape[-1], weights[2].shape[0] if phi == "mlp" and len(weights) == 5 and weights[2].ndim else 0
    expected = {
        "avg": [],
        "mlp": [[geometry.l, size], [hidden, geometry.l * size], [hidden], [size, hidden], [size]],
        "conv": [[size, geometry.l], [size, size], [size]],
    }[phi]
    shapes = [list(weight.shape) for weight in weights]
    if shapes != expected:
        raise ValueError(f"weights of phi={phi!r} must have shapes {expected}, got {shapes}")


def packed_lengths(cu_seqlens: Tensor, *packed: Tensor) -> list[int]:
    """Lengths of the sequences packed in one row; raises ValueError unless cu_seqlens describes exactly that row."""
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens must be int32 [N + 1], got {cu_seqlens.dtype} {list(cu_seqlens.shape)}")
    for x in packed:
        if x.shape[0] != 1 or x.shape[1] != packed[0].shape[1]:
            raise ValueError(
                f"packed tensors must have one row of {packed[0].shape[1]} tokens, got {list(x.shape[:2])}"
            )
    offsets: list[int] = cu_seqlens.tolist()
    lengths = [after - before for before, after in pairwise(offsets)]
    if offsets[0] != 0 or offsets[-1] != packed[0].shape[1] or min(lengths) < 0:
        shown = offsets if len(offsets) <= 8 else [*offsets[:4], "...", *offsets[-3:]]
        raise ValueError(f"cu_seqlens must start at 0, never fall and end at {packed[0].shape[1]}, got {shown}")
    return lengths
