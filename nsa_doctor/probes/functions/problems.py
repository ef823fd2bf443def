"""Problems for attention functions: sizes, masks by the declared spec, and values of many kinds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.core.function_spec import UNLIMITED, Alignment, FunctionSpec
from nsa_doctor.probes.functions.layout import from_layout
from nsa_doctor.subject.function import Branch, Convention, FunctionSubject, Problem, Shape

Values = Callable[[Shape, torch.Generator], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which values a problem has: a seed, and what they are like (`hard_values.KINDS`)."""

    seed: int = 0
    values: Values | None = None
    about: str = ""


def problem_of(subject: FunctionSubject, shape: Shape, draw: Draw | None = None) -> Problem:
    """One problem of that shape, its values rounded to the dtype the function is examined in."""
    draw = draw or Draw()
    dtype = getattr(torch, subject.dtype)
    chance = torch.Generator().manual_seed(
        1_000_003 * subject.seed + 7919 * draw.seed + 31 * shape.queries + shape.keys
    )
    values, spec = {**normal(shape, chance), **(draw.values(shape, chance) if draw.values else {})}, subject.spec
    branches: tuple[Branch, ...] = ()
    sparse = None if subject.convention.make is None else subject.convention.make(spec, shape, chance)
    if sparse is not None:
        values = {"q": values["q"], **{name: _like(name, value, values) for name, value in sparse.inputs.items()}}
        branches = sparse.branches
    if spec.has_sinks:
        values.setdefault("sinks", torch.randn(shape.heads, generator=chance))
    dout = torch.randn(shape.batch, shape.queries, shape.heads, shape.value, generator=chance)
    problem = Problem(
        shape=shape,
        spec=spec,
        inputs={name: value.to(dtype) for name, value in values.items()},
        branches=branches or (Branch(seen=seen_by(spec, subject.convention, shape, chance)),),
        constants={} if sparse is None else sparse.constants,
        scale=spec.scale if spec.scale is not None else 1 / math.sqrt(shape.head),
        dout=dout.to(dtype),
        slopes=torch.tensor([2.0 ** (-8 * (h + 1) / shape.heads) for h in range(shape.heads)])
        if spec.has_alibi
        else None,
        about=draw.about,
    )
    return problem


def given_problem(subject: FunctionSubject) -> Problem | None:
    """The problem of the user's own inputs, in the dtype that is examined; None without any."""
    if not subject.given:
        return None
    layout = subject.convention.layout
    inputs = {name: from_layout(subject.given[name], layout) for name in ("q", "k", "v")}
    (batch, queries, heads, head), (_, keys, groups, value) = inputs["q"].shape, inputs["v"].shape
    shape = Shape(batch=batch, queries=queries, keys=keys, heads=heads, groups=groups, head=head, value=value)
    values: Values = lambda shape, chance: {**inputs, **_own_sinks(subject)}  # noqa: E731
    return problem_of(subject, shape, Draw(seed=9, values=values, about="the given inputs"))


def _own_sinks(subject: FunctionSubject) -> dict[str, Tensor]:
    return {"sinks": subject.given["sinks"]} if "sinks" in subject.given else {}


def _like(name: str, value: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """The drawn keys or values, where an input of a sparse operator has their shape."""
    drawn = values.get(name[:1]) if name.split("_")[0] in ("k", "v") else None
    return drawn if drawn is not None and drawn.shape == value.shape else value


def normal(shape: Shape, chance: torch.Generator) -> dict[str, Tensor]:
    """Ordinary values."""

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=chance)

    return {
        "q": drawn(shape.batch, shape.queries, shape.heads, shape.head),
        "k": drawn(shape.batch, shape.keys, shape.groups, shape.head),
        "v": drawn(shape.batch, shape.keys, shape.groups, shape.value),
    }


def with_inputs(problem: Problem, **inputs: Tensor) -> Problem:
    """The problem with other values, of the same dtype."""
    changed = {name: value.to(problem.inputs[name].dtype) for name, value in inputs.items()}
    return replace(problem, inputs={**problem.inputs, **changed})


def seen_by(spec: FunctionSpec, convention: Convention, shape: Shape, chance: torch.Generator) -> Tensor:
    """Which keys each query may read: bool [B or 1, 1, Sq, Sk]."""
    align = spec.align or convention.align
    if shape.parts:
        seen = torch.zeros(shape.queries, shape.keys, dtype=torch.bool)
        query, key = 0, 0
        for queries, keys in shape.parts:
            seen[query : query + queries, key : key + keys] = block_seen(spec, align, queries, keys)
            query, key = query + queries, key + keys
        return seen[None, None]
    if shape.filled:
        rows = []
        for filled in shape.filled:
            row = torch.zeros(shape.queries, shape.keys, dtype=torch.bool)
            row[:, :filled] = block_seen(spec, align, shape.queries, filled)
            rows.append(row)
        return torch.stack(rows)[:, None]
    seen = block_seen(spec, align, shape.queries, shape.keys)[None, None]
    if spec.has_mask:
        kept = torch.rand(shape.batch, 1, shape.queries, shape.keys, generator=chance) < _SHARE_SEEN
        first = seen.int().argmax(-1, keepdim=True)
        kept = kept.scatter(-1, first.expand(shape.batch, -1, -1, -1), True)
        seen = seen & kept
    return seen


_SHARE_SEEN = 0.6


def block_seen(spec: FunctionSpec, align: Alignment, queries: int, keys: int) -> Tensor:
    """The mask of one sequence, [Sq, Sk]."""
    position = torch.arange(queries)[:, None] + (keys - queries if align == "bottom_right" else 0)
    key = torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if spec.is_causal:
        seen &= key <= position
    if spec.window is not None:
        left, right = spec.window
        if left != UNLIMITED:
            seen &= key >= position - left
        if right != UNLIMITED:
            seen &= key <= position + right
    return seen
