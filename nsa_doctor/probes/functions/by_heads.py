"""What is right for some heads depends on no others: a few at a time stay in the caches, two to three times as fast."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.subject.function import Problem

_SCORES = 2**19  # of one block, in one matrix

Place = tuple[int, int, int]  # along which axis, from where, how many


@dataclass(frozen=True)
class Block:
    """Some query heads of a problem, and where their tensors lie in those of the whole, by name.

    None where the heads share the tensor.
    """

    problem: Problem
    places: Mapping[str, Place | None]


def by_heads(problem: Problem, answer: Callable[[Problem], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The answers of a few heads after the others, put together: out, lse and gradients, by name.

    What heads share is added up, in float32 at least.
    """
    blocks = list(_blocks(problem))
    if len(blocks) == 1:
        return dict(answer(problem))
    whole: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for block in blocks:
        for name, value in answer(block.problem).items():
            place = block.places[name]
            if name not in whole:
                dtypes[name] = value.dtype
                whole[name] = value.new_zeros(_size(problem, name, value, place), dtype=_wide(value))
            (whole[name] if place is None else whole[name].narrow(*place)).add_(value)
    return {name: value.to(dtypes[name]) for name, value in whole.items()}


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)


def _size(problem: Problem, name: str, part: Tensor, place: Place | None) -> list[int]:
    size = list(part.shape)
    if place is not None:
        given = problem.inputs.get(name.removeprefix("d"))
        size[place[0]] = problem.shape.heads if given is None else given.shape[place[0]]
    return size


def _blocks(problem: Problem) -> Iterator[Block]:
    shape = problem.shape
    ratio = shape.heads // shape.groups
    count = max(1, _SCORES // max(1, shape.batch * shape.queries * shape.keys))
    if count >= shape.heads:
        yield Block(problem, {})
        return
    # whole groups, or a part of one
    count = count // ratio * ratio if count >= ratio else next(n for n in range(count, 0, -1) if ratio % n == 0)
    for first in range(0, shape.heads, count):
        yield _block(problem, first, min(count, shape.heads - first), ratio)


def _block(problem: Problem, first: int, count: int, ratio: int) -> Block:
    shape = problem.shape
    heads, groups = (first, count), (first // ratio, -(-count // ratio))
    inputs: dict[str, Tensor] = {}
    places: dict[str, Place | None] = {"out": (2, *heads), "lse": (1, *heads)}
    for name, value in problem.inputs.items():
        axis = 0 if name == "sinks" else 2
        length = value.shape[axis] if axis < value.ndim else 1
        place = {shape.groups: (axis, *groups), shape.heads: (axis, *heads)}.get(length)
        inputs[name] = value if place is None else value.narrow(*place)
        places[f"d{name}"] = place
    branches = (
        replace(each, seen=each.seen if each.seen.shape[1] == 1 else each.seen.narrow(1, *heads))
        for each in problem.branches
    )
    part = replace(
        problem,
        shape=replace(shape, heads=count, groups=groups[1]),
        inputs=inputs,
        branches=tuple(branches),
        dout=problem.dout.narrow(2, *heads),
        dlse=None if problem.dlse is None else problem.dlse.narrow(1, *heads),
        slopes=None if problem.slopes is None else problem.slopes.narrow(-1, *heads),
    )
    return Block(part, places)
