"""`native`: called as nsa.nsa_attention is, with the chosen blocks given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nsa.ops.geometry import Geometry
from nsa_doctor.adapters.functions.block_choice import chosen, seen_by_choice
from nsa_doctor.core.function_spec import FunctionSpec
from nsa_doctor.subject.function import Arguments, Branch, Convention, Keyword, Problem, Shape, Sparse

_LEAST_SLOTS = 3
_UNKNOWN = ("mask", "softcap", "alibi", "sinks", "full", "scale", "bottom_right", "top_left")
_USUAL_WINDOW = 32


def geometry_of(spec: FunctionSpec) -> Geometry:
    """Selection blocks and window as declared; compressed blocks half as long, with half of that for a stride."""
    length = max(2, spec.block // 2 * 2)
    window = _USUAL_WINDOW if spec.window is None else spec.window[0] + 1
    return Geometry(
        l=length // 2, d=max(1, length // 4), l_sel=length, n_sel=max(_LEAST_SLOTS, spec.num_blocks), w=window
    )


def make(spec: FunctionSpec, shape: Shape, chance: torch.Generator) -> Sparse:
    """Keys and values of three branches, one gate for each, and a choice of blocks."""
    geometry = geometry_of(spec)
    compressed = geometry.num_compressed(shape.keys)
    counts = {"cmp": compressed, "sel": shape.keys, "win": shape.keys}
    inputs = {}
    for branch, count in counts.items():
        for name, size in (("k", shape.head), ("v", shape.value)):
            inputs[f"{name}_{branch}"] = torch.randn(shape.batch, count, shape.groups, size, generator=chance)
    inputs["gates"] = torch.rand(shape.batch, shape.queries, shape.groups, 3, generator=chance)
    slots = chosen(shape, geometry.l_sel, geometry.n_sel, chance)
    query = torch.arange(shape.queries)[:, None]
    ends = torch.arange(compressed) * geometry.d + geometry.l - 1
    distance = query - torch.arange(shape.keys)
    seen = {
        "cmp": (ends <= query)[None, None],
        "sel": seen_by_choice(slots, shape, geometry.l_sel),
        "win": ((distance >= 0) & (distance < geometry.w))[None, None],
    }
    branches = tuple(
        Branch(seen=seen[name], gate="gates", place=place, keys=f"k_{name}", values=f"v_{name}")
        for place, name in enumerate(counts)
    )
    return Sparse(inputs=inputs, branches=branches, constants={"slots": slots, "geometry": geometry})


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, the keys and values of three branches, gates, the geometry; slots by name."""
    names = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")
    slots = problem.constants["slots"].to(tensors["q"].device)
    return Arguments(
        positional=(*(tensors[name] for name in names), problem.constants["geometry"]),
        keywords=(Keyword(names=("slots",), value=slots, word="the convention"),),
    )


def read(result: Any, problem: Problem) -> Mapping[str, Any]:
    """The mixed output."""
    return {"out": getattr(result, "out", result[0] if isinstance(result, tuple) else result)}


CONVENTION = Convention(
    name="native",
    summary="f(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, geometry, slots=…), [B, S, H, D]",
    layout="bshd",
    arguments=arguments,
    read=read,
    make=make,
    has_one_pair=False,
    refuses=dict.fromkeys(_UNKNOWN, "the operator has no argument for it"),
)
