"""What the kernels of decoding read and write: keys and values of the past, and where they compute.

How many tokens are held stands on the device: one token more takes the same launches with the same arguments, so that
they can be captured and replayed. Sizes follow from the capacity and never from the number of rows, so that a row has
the same bits alone and among others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry

SPLIT = 256  # compressed or sliding keys that one program reads
_MOST_ELEMENTS = 2**31 - 1  # of one row and group: offsets there are int32


class GateParameters(NamedTuple):
    """The weights and biases of the gate's two layers, and how logits become weights.

    temperature: of a softmax, None for a sigmoid. alone: the only branch that counts, None where all do.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    temperature: float | None
    alone: int | None


@dataclass(frozen=True)
class StepMemory:
    """Memory of one layer for steps of one token, to be filled by `nsa.ops.decode.triton`.

    k_cmp, k_sel [B, G, capacity, Dk] hold every token in order; k_win [B, G, W, Dk] and k_new [B, G, l, Dk] (tokens
    that are not compressed yet) are rings: token t lies at t modulo their length. v_… the same with Dv.
    frequencies: float64 [Dk/2], the angle of a channel pair per position. count, int32 [2]: how many tokens are held,
    and the position of the step's own. The rest is one step's: rotated queries q [B, H, Dk], gates [B, G, 3], scores
    [B, H, blocks], parts [B, H, P, Dv] with their peaks and sums norms [B, H, P, 2], importance [B, G, 2, blocks] of
    the compressed tokens that begin in a block, to it and to the next, slots
    [B, G, n_sel], and the mixed output out [B, 1, H·Dv]. launches: kernels compiled for this memory, by name.
    """

    geometry: Geometry
    frequencies: Tensor
    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    k_new: Tensor
    v_new: Tensor
    count: Tensor
    projected: Tensor
    q: Tensor
    gates: Tensor
    scores: Tensor
    parts: Tensor
    norms: Tensor
    importance: Tensor
    slots: Tensor
    out: Tensor
    launches: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """All but what was compiled for these very tensors: a copy has others."""
        return {**vars(self), "launches": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up what `__getstate__` gave."""
        vars(self).update(state)

    @property
    def capacity(self) -> int:
        """Tokens that it has room for."""
        return self.k_sel.shape[2]

    @property
    def num_splits(self) -> tuple[int, int, int]:
        """Programs for the compressed tokens, the window and the slots of one row and group, at most."""
        return _num_splits(self.k_cmp, self.k_win, self.geometry)

    def fill_unwritten(self, value: float, length: int) -> None:
        """Overwrite all that holds none of `length` tokens, and all that one step hands to the next."""
        geometry = self.geometry
        num_compressed = geometry.num_compressed(length)
        for x in (self.k_sel, self.v_sel):
            x[:, :, length:] = value
        for x in (self.k_cmp, self.v_cmp):
            x[:, :, num_compressed:] = value
        waiting = _waiting(length, geometry)
        for ring in (self.k_win, self.v_win, self.k_new, self.v_new):
            held = places(ring, length, waiting if ring is self.k_new or ring is self.v_new else geometry.w - 1)
            kept = ring[:, :, held].clone()
            ring.fill_(value)
            ring[:, :, held] = kept
        for x in (self.projected, self.q, self.gates, self.scores, self.parts, self.norms, self.importance, self.out):
            x.fill_(value)

    def num_bytes(self) -> int:
        """Memory allocated for tokens; what one step computes in is left out."""
        keys, values = (
            (self.k_cmp, self.k_sel, self.k_win, self.k_new),
            (self.v_cmp, self.v_sel, self.v_win, self.v_new),
        )
        return sum(x.nbytes for x in keys + values)

    def window(self, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, w − 1 at most, G, D] that the token after `length` may see besides itself."""
        return _in_order((self.k_win, self.v_win), length, self.geometry.w - 1)

    def waiting(self, length: int) -> tuple[Tensor, Tensor]:
        """Tokens [B, fewer than l, G, D] of `length` that the next compressed token starts with."""
        return _in_order((self.k_new, self.v_new), length, _waiting(length, self.geometry))


def step_memory(
    geometry: Geometry,
    num_heads: int,
    num_kv: int,
    frequencies: Tensor,
    compressed: tuple[Tensor, Tensor],
    selected: tuple[Tensor, Tensor],
    window: tuple[Tensor, Tensor],
    waiting: tuple[Tensor, Tensor],
    length: int,
) -> StepMemory:
    """Memory that goes on from `length` tokens; frequencies as `StepMemory` has them.

    num_kv: pairs of keys and values that a token is projected to: 3, or 1 that all branches share.

    compressed, selected: keys and values [B, G, capacity, D], taken as they are. window, waiting: the newest tokens
    [B, n, G, D], n as `StepMemory.window` and `waiting` give them; they are copied.
    """
    k, v = selected
    rows, groups, capacity, size_k = k.shape
    size_v = v.shape[-1]
    windows = [_ring(x, min(geometry.w, capacity), length) for x in window]
    rings = windows + [_ring(x, geometry.l, length) for x in waiting]
    with torch.inference_mode(False):  # memory made in inference mode could not be written outside it
        k_win, v_win, k_new, v_new = rings
        num_parts = sum(_num_splits(compressed[0], k_win, geometry))
        single = partial(torch.empty, dtype=torch.float32, device=k.device)
        return StepMemory(
            geometry, frequencies, *compressed, *selected, k_win, v_win, k_new, v_new,
            count=torch.tensor([length, length - 1], dtype=torch.int32, device=k.device),
            projected=k.new_empty(rows, num_heads * size_k + num_kv * groups * (size_k + size_v)),
            q=k.new_empty(rows, num_heads, size_k),
            gates=single(rows, groups, 3),
            scores=single(rows, num_heads, compressed[0].shape[2]),
            parts=single(rows, num_heads, num_parts, size_v),
            norms=single(rows, num_heads, num_parts, 2),
            importance=single(rows, groups, 2, geometry.num_blocks(capacity)),
            slots=torch.empty(rows, groups, geometry.n_sel, dtype=torch.int32, device=k.device),
            out=k.new_empty(rows, 1, num_heads * size_v),
        )  # fmt: skip


def why_too_long(capacity: int, head_size: int) -> str | None:
    """Why the kernels cannot serve a cache with room for so many tokens, or None when they can."""
    if capacity * head_size > _MOST_ELEMENTS:
        return f"the kernels of decoding serve up to {_MOST_ELEMENTS // head_size} tokens, got {capacity}"
    return None


def places(ring: Tensor, length: int, num: int) -> Tensor:
    """Where the newest `num` of `length` tokens, as many as there are, lie in a ring [B, G, W, D]; in order."""
    return torch.arange(max(0, length - num), length, device=ring.device) % ring.shape[2]


def _waiting(length: int, geometry: Geometry) -> int:
    return length - geometry.num_compressed(length) * geometry.d


def _num_splits(k_cmp: Tensor, k_win: Tensor, geometry: Geometry) -> tuple[int, int, int]:
    return -(-k_cmp.shape[2] // SPLIT), -(-k_win.shape[2] // SPLIT), geometry.n_sel


def _ring(newest: Tensor, num: int, length: int) -> Tensor:
    rows, _, groups, size = newest.shape
    with torch.inference_mode(False):
        ring = newest.new_empty(rows, groups, num, size)
        ring[:, :, places(ring, length, newest.shape[1])] = newest.transpose(1, 2)
    return ring


def _in_order(rings: Iterable[Tensor], length: int, num: int) -> tuple[Tensor, Tensor]:
    keys, values = (ring[:, :, places(ring, length, num)].transpose(1, 2) for ring in rings)
    return keys, values
