"""Calls of `nsa`'s operators on random tensors, and where each implementation lives."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from nsa.ops import api, tiles
from nsa.ops.geometry import Geometry
from nsa_doctor.fuzz.cases import Sizes
from nsa_doctor.fuzz.properties.ranges import place_of
from nsa_doctor.measurement import Place
from nsa_doctor.probes.perform import ask

BRANCHES = ("compressed", "selected", "sliding")
SHORT = {"compressed": "cmp", "selected": "sel", "sliding": "win"}
_FUNCTIONS = {
    "compressed": ("compress", "compressed_attention"),
    "selected": ("select", "selected_attention"),
    "sliding": ("slide", "sliding_attention"),
    "out": ("gate", "mix"),
}


def geometry_of(sizes: Sizes) -> Geometry:
    """The geometry of these sizes."""
    return Geometry(l=sizes.l, d=sizes.d, l_sel=sizes.l_sel, n_sel=sizes.n_sel, w=sizes.w)


def attend(
    tensors: Mapping[str, Tensor],
    geometry: Geometry,
    impl: str,
    slots: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> "api.NSAOutput":
    """`nsa_attention` of these tensors; what it raises is the subject's."""
    return ask(
        "forward",
        lambda: api.nsa_attention(**tensors, geometry=geometry, impl=impl, slots=slots, cu_seqlens=cu_seqlens),  # type: ignore[arg-type]
        None,
    )


def branch_place(branch: str, impl: str) -> Place:
    """Where the implementation of a branch is defined."""
    folder, function = _FUNCTIONS[branch]
    module = impl if impl == "reference" or (branch, impl) in _OWN_FILES else "vectorized"
    return place_of(getattr(importlib.import_module(f"nsa.ops.{folder}.{module}"), function))


def choice_place(impl: str) -> Place:
    """Where the implementation of the choice is defined."""
    module = "reference" if impl == "reference" else "vectorized"
    return place_of(importlib.import_module(f"nsa.ops.select.{module}").choose_slots)


@contextmanager
def tiles_of(budget: int | None) -> Iterator[None]:
    """Tiles of that many elements, so that a small input crosses their borders."""
    before = tiles._CPU_BUDGET
    try:
        tiles._CPU_BUDGET = before if budget is None else budget
        yield
    finally:
        tiles._CPU_BUDGET = before


def differentiate(loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of every leaf, zero where none came."""

    def grads() -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            loss, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )

    return dict(zip(leaves, ask("backward", grads, None), strict=True))


_OWN_FILES = {("sliding", "fused"), ("sliding", "flash"), ("compressed", "flash")}
