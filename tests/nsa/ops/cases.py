"""The shapes and dtypes the fast paths are held to, and plain torch's own answer for each."""

from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry, slots_to_mask

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 500, 511, 512, 513, 1000, 1024, 2048)
HEADS_PER_GROUP = (1, 2, 6, 16)
HEAD_SIZES = ((16, 16), (64, 64), (192, 128))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
GEOMETRIES = (
    Geometry(l=32, d=16, l_sel=64, n_sel=16, w=512),
    Geometry(l=16, d=8, l_sel=32, n_sel=8, w=64),
    Geometry(l=16, d=16, l_sel=16, n_sel=4, w=33),
)


@dataclass(frozen=True)
class Case:
    """One combination; groups and rows alternate so that both 1 and 2 occur with every value."""

    num_tokens: int
    heads_per_group: int
    head_sizes: tuple[int, int]
    dtype: torch.dtype
    geometry: Geometry

    def __str__(self) -> str:
        g = self.geometry
        sizes = f"Dk{self.head_sizes[0]}-Dv{self.head_sizes[1]}"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"S{self.num_tokens}-h{self.heads_per_group}-{sizes}-{dtype}-l{g.l}-d{g.d}-lsel{g.l_sel}-n{g.n_sel}-w{g.w}"
        )

    @property
    def num_groups(self) -> int:
        return 2 if self.heads_per_group < 6 else 1

    @property
    def num_rows(self) -> int:
        return 2 if self.num_tokens < 500 else 1


def all_cases() -> list[Case]:
    """The full product."""
    return [Case(*values) for values in product(LENGTHS, HEADS_PER_GROUP, HEAD_SIZES, DTYPES, GEOMETRIES)]


def pairwise_cases() -> list[Case]:
    """Cases in which every pair of values occurs at least once: greedily the one that covers most new pairs."""
    remaining = {pair for case in all_cases() for pair in _pairs(case)}
    chosen = []
    candidates = {case: _pairs(case) for case in all_cases()}
    while remaining:
        case = max(candidates, key=lambda candidate: len(candidates[candidate] & remaining))
        remaining -= candidates.pop(case)
        chosen.append(case)
    return sorted(chosen, key=lambda case: case.num_tokens)


def _pairs(case: Case) -> frozenset[tuple[tuple[str, object], tuple[str, object]]]:
    values = [(name, getattr(case, name)) for name in Case.__dataclass_fields__]
    return frozenset(combinations(values, 2))


def inputs(case: Case, seed: int = 0) -> dict[str, Tensor]:
    """Random q, k_cmp, … gates in the case's dtype, as leaves that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens, groups = case.num_rows, case.num_tokens, case.num_groups
    (d_k, d_v), blocks = case.head_sizes, case.geometry.num_compressed(tokens)
    shapes = {
        "q": (rows, tokens, groups * case.heads_per_group, d_k),
        "k_cmp": (rows, blocks, groups, d_k),
        "v_cmp": (rows, blocks, groups, d_v),
        "k_sel": (rows, tokens, groups, d_k),
        "v_sel": (rows, tokens, groups, d_v),
        "k_win": (rows, tokens, groups, d_k),
        "v_win": (rows, tokens, groups, d_v),
        "gates": (rows, tokens, groups, 3),
    }
    return {
        name: torch.randn(shape, generator=generator).to(case.dtype).requires_grad_() for name, shape in shapes.items()
    }


def dense(
    tensors: dict[str, Tensor], slots: Tensor, geometry: Geometry, *, half_products: bool = False
) -> dict[str, Tensor]:
    """All branches as dense attention under a mask, in plain torch: what a fast path's rounding is measured by.

    half_products: probabilities are rounded to the inputs' dtype before they meet the values, as matrix units need it.
    """
    q, tokens = tensors["q"], tensors["k_sel"].shape[1]
    position = torch.arange(tokens - q.shape[1], tokens, device=q.device)[:, None]
    key = torch.arange(tokens, device=q.device)
    block = torch.arange(tensors["k_cmp"].shape[1], device=q.device)
    causal = key <= position
    masks = {
        "compressed": (block * geometry.d + geometry.l - 1 <= position)[None, :, None],
        "selected": slots_to_mask(slots, tokens, geometry) & causal[None, :, None],
        "sliding": (causal & (key > position - geometry.w))[None, :, None],
    }
    names = {"compressed": "cmp", "selected": "sel", "sliding": "win"}
    branches = {
        branch: masked_attention(
            q, tensors[f"k_{names[branch]}"], tensors[f"v_{names[branch]}"], mask, half_products=half_products
        )
        for branch, mask in masks.items()
    }
    gates = tensors["gates"].repeat_interleave(q.shape[2] // tensors["k_sel"].shape[2], dim=2)
    mixed = torch.stack(list(branches.values()), dim=-1) * gates[..., None, :]
    return {**branches, "out": mixed.sum(-1)}


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, half_products: bool = False) -> Tensor:
    """Softmax attention under mask [B, T, G, S], scores in float32 at least; zero for a row that sees nothing."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads_per_group = q.shape[2] // k.shape[2]
    k, v, mask = (x.repeat_interleave(heads_per_group, dim=2) for x in (k, v, mask.expand(-1, -1, k.shape[2], -1)))
    scores = torch.einsum("bthd,bshd->bths", q.to(dtype), k.to(dtype)) / q.shape[-1] ** 0.5
    hidden = ~mask
    scores = scores.masked_fill(hidden, torch.finfo(dtype).min)
    weights = scores.softmax(-1).masked_fill(hidden, 0) if scores.shape[-1] else scores
    if half_products:
        weights = weights.to(q.dtype).to(dtype)
    return torch.einsum("bths,bshd->bthd", weights, v.to(dtype)).to(q.dtype)
