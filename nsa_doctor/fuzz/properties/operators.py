"""Calls of `nsa`'s operators on random tensors, and where each implementation lives."""

import importlib
from collections.abc import Mapping

import torch
from torch import Tensor

from nsa.backends import route
from nsa.ops import api
from nsa.ops.geometry import Geometry
from nsa_doctor.core.measurement import Place
from nsa_doctor.fuzz.cases import Impl, Sizes
from nsa_doctor.fuzz.properties.ranges import place_of
from nsa_doctor.probes.hooks.phase import ask

BRANCHES = ("compressed", "selected", "sliding")
SHORT = {"compressed": "cmp", "selected": "sel", "sliding": "win"}
LARGEST_HEAD = 128  # of a case
_TILED = ("vectorized", "fused")
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
    impl: Impl,
    tile_budget: int | None,
    **given: Tensor | None,
) -> "api.NSAOutput":
    """`nsa_attention` of these tensors, with slots or cu_seqlens if given; what it raises is the subject's.

    tile_budget: elements of a tile, so that a small input crosses borders of tiles, where the implementation has any.
    """
    budget = tile_budget if impl in _TILED else None
    return ask(
        "forward",
        lambda: api.nsa_attention(**tensors, geometry=geometry, impl=impl, num_tile_elements=budget, **given),  # type: ignore[arg-type]
        None,
    )


def branch_place(branch: str, impl: Impl, like: Tensor) -> Place:
    """Where the implementation of a branch is defined that serves tensors like this one."""
    folder, function = _FUNCTIONS[branch]
    routes = route(like.device, like.dtype, LARGEST_HEAD, impl)
    module = getattr(routes, branch).effective if branch != "out" else "vectorized"
    module = "reference" if impl == "reference" else module
    return place_of(getattr(importlib.import_module(f"nsa.ops.{folder}.{module}"), function))


def choice_place(impl: str) -> Place:
    """Where the implementation of the choice is defined."""
    module = "reference" if impl == "reference" else "vectorized"
    return place_of(importlib.import_module(f"nsa.ops.select.{module}").choose_slots)


def differentiate(loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of every leaf, zero where none came."""

    def grads() -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            loss, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )

    return dict(zip(leaves, ask("backward", grads, None), strict=True))
