"""Other orders and signs of a module's parameters that its first values are as likely to have."""

import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor, nn

Parameters = Mapping[str, Tensor]
_PARTS = (2, 3)  # gates and values; queries, keys and values
_MOST = 200
_NEAR = 0.25  # of the larger deviation, which few values estimate badly
_STANDARD_ERRORS = 5.0


class _Change(NamedTuple):
    """Values that parameters take, by name, and whose child modules they are."""

    parent: str
    values: dict[str, Tensor]


def relabelled(module: nn.Module, parameters: Parameters) -> Iterator[dict[str, Tensor]]:
    """The parameters with parts of a projection's rows exchanged, projections of a module exchanged, or negated.

    Layers of a stack are changed alike. Only what is drawn alike, as the module stands, is exchanged, and negated only
    what is drawn around zero: a model that has another of these beneath the same names is trained as well as this one.
    """
    changes = list(_changes(module, parameters))
    yield from ({**parameters, **change.values} for change in changes[:_MOST])
    several = (
        {**parameters, **first.values, **second.values}
        for first in changes
        for second in changes
        if first.parent == second.parent and not first.values.keys() & second.values.keys()
    )
    yield from (each for each, _ in zip(several, range(_MOST), strict=False))


def _changes(module: nn.Module, parameters: Parameters) -> Iterator[_Change]:
    layers: dict[str, list[str]] = {}
    for path, part in module.named_modules():
        if any(name in parameters for name in _own(path, part)):
            layers.setdefault(re.sub(r"\d+", "*", path), []).append(path)
    parts = dict(module.named_modules())
    for shared, paths in layers.items():
        parent = shared.rpartition(".")[0]
        own = [(name, each.detach()) for path in paths for name, each in _own(path, parts[path]).items()]
        if all(_is_around_zero(each) for _, each in own):
            yield _Change(parent, {name: -parameters[name] for name, _ in own})
        for order in _orders(own):
            yield _Change(parent, {name: _ordered(parameters[name], order) for name, _ in own})
        for other, others in layers.items():
            if shared < other and other.rpartition(".")[0] == parent and len(others) == len(paths):
                pairs = [
                    pair
                    for here, there in zip(paths, others, strict=True)
                    for pair in _pairs(_own(here, parts[here]), _own(there, parts[there]))
                ]
                if pairs and all(first in parameters and second in parameters for first, second in pairs):
                    there = {first: parameters[second] for first, second in pairs}
                    yield _Change(parent, {**there, **{second: parameters[first] for first, second in pairs}})


def _own(path: str, part: nn.Module) -> dict[str, nn.Parameter]:
    return {f"{path}.{name}".removeprefix("."): each for name, each in part.named_parameters(recurse=False)}


def _orders(own: list[tuple[str, Tensor]]) -> Iterator[tuple[int, ...]]:
    """Orders of two or three parts of the rows of every one, which are drawn alike."""
    for number in _PARTS:
        if any(not each.dim() or each.shape[0] % number for _, each in own):
            continue
        chunks = [each.chunk(number) for _, each in own]
        if all(_is_drawn_alike(first, other) for first, *rest in chunks for other in rest):
            yield from (order for order in permutations(range(number)) if order != tuple(range(number)))


def _ordered(parameter: Tensor, order: tuple[int, ...]) -> Tensor:
    parts = parameter.chunk(len(order))
    return torch.cat([parts[index] for index in order])


def _pairs(here: Mapping[str, nn.Parameter], there: Mapping[str, nn.Parameter]) -> list[tuple[str, str]]:
    """The names of parameters of both that could be exchanged; none unless all could."""
    pairs = list(zip(here, there, strict=False)) if len(here) == len(there) else []
    is_alike = all(
        here[first].shape == there[second].shape and _is_drawn_alike(here[first], there[second])
        for first, second in pairs
    )
    return pairs if is_alike else []


def _is_drawn_alike(first: Tensor, second: Tensor) -> bool:
    """Whether both are one constant, or their means and deviations are as of one draw."""
    (mean, deviation), (other_mean, other) = _moments(first), _moments(second)
    widest = max(deviation, other)
    error = _STANDARD_ERRORS * widest / min(first.numel(), second.numel()) ** 0.5
    return abs(deviation - other) <= _NEAR * widest + error and abs(mean - other_mean) <= error


def _is_around_zero(values: Tensor) -> bool:
    mean, deviation = _moments(values)
    return abs(mean) <= _STANDARD_ERRORS * deviation / values.numel() ** 0.5


def _moments(values: Tensor) -> tuple[float, float]:
    wide = values.detach().double()
    return float(wide.mean()), float(wide.std(correction=0))
