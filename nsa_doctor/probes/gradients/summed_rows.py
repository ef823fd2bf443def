"""Rows of a parameter that act through their sum alone: whatever is asked for, they get one gradient."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.detached_params import PathWatch
from nsa_doctor.probes.hooks.places import parameter_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import forward_backward

_ROUNDINGS = 1e4
_TABLES = (nn.Embedding, nn.EmbeddingBag)  # tokens that are as frequent may well get one gradient


@dataclass(frozen=True)
class Summed:
    """A parameter all of whose rows have others that act as they do; `num_groups` of them differ from one another."""

    name: str
    num_rows: int
    num_groups: int
    place: Place


def summed_rows(sp: BuiltModule, inputs: Sequence[Tensor]) -> list[Summed]:
    """Those of which it holds for every one of these inputs, with the line that adds the rows up where one is seen."""
    groups: dict[str, Tensor] = {}
    for number, x in enumerate(inputs):
        watch = _Watch(FrameFilter(sp.subject.packages))
        forward_backward(sp, x, watch)
        now = dict(_grouped(sp.module))
        groups = {name: now[name] for name in (groups if number else now) if name in now}
    named = dict(sp.module.named_parameters())
    found = []
    for name, group in groups.items():
        place = watch.place_of_sum(named[name])
        place = place if place.file else watch.place_of(named[name])
        count = len(group[group >= 0].unique())
        found.append(Summed(name, int((group >= 0).sum()), count, parameter_place(place, sp.module, name)))
    return found


def _grouped(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, the group of each row, -1 where it has no gradient) of parameters whose rows all have others like them."""
    tables = {id(each.weight) for each in module.modules() if isinstance(each, _TABLES)}
    for name, parameter in module.named_parameters():
        if parameter.grad is None or parameter.ndim < 2 or id(parameter) in tables:
            continue
        rows = parameter.grad.to_dense().flatten(1)
        if rows.shape[1] > 1 and bool(torch.isfinite(rows).all()) and (group := _groups(rows)) is not None:
            yield name, group


def _groups(rows: Tensor) -> Tensor | None:
    """Of each row the first that is the same but for rounding, -1 of rows of zeros; None where one is like no other."""
    has_any = (rows != 0).any(1)
    if not rows.numel():
        return None
    allowed = _ROUNDINGS * torch.finfo(rows.dtype).eps * float(rows.abs().max())
    group = torch.full((len(rows),), -1)
    for index in has_any.nonzero().flatten().tolist():
        if group[index] < 0:
            alike = has_any & ((rows - rows[index]).abs().amax(1) <= allowed)
            if int(alike.sum()) < 2:
                return None
            group[alike.cpu()] = index
    return group if bool(has_any.any()) else None


class _Watch(PathWatch):
    """Sees which operations hand one gradient on to several values."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__(frames)
        self._users: dict[Any, list[Any]] = {}
        self._leaves: dict[int, Any] = {}
        self._spreading: set[Any] = set()

    def follow(self, loss: Tensor) -> None:
        """Look at what every operation is handed and hands on."""
        waiting, seen = [loss.grad_fn], set[Any]()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                self._leaves[id(node.variable)] = node
            node.register_hook(self._handing(node))
            for following, _ in node.next_functions:
                self._users.setdefault(following, []).append(node)
                waiting.append(following)

    def place_of_sum(self, leaf: Tensor) -> Place:
        """Where the nearest operation stands that spreads a gradient, or that it is part of; empty if none is seen."""
        waiting, seen = [(self._leaves.get(id(leaf)), False)], set[Any]()
        while waiting:
            node, is_beyond = waiting.pop(0)
            if node in seen:
                continue
            seen.add(node)
            is_beyond |= node in self._spreading
            place = self.nodes.get(node, Place())
            if is_beyond and place.file:
                return place
            waiting += [(user, is_beyond) for user in self._users.get(node, [])]
        return Place()

    def _handing(self, node: Any) -> Any:
        def look(handed: Any, received: Any) -> None:
            most = max((each.numel() for each in received if each is not None), default=0)
            if any(each is not None and each.numel() > most and _is_spread(each) for each in handed):
                self._spreading.add(node)

        return look


def _is_spread(gradient: Tensor) -> bool:
    """Whether it is the same all along an axis."""
    dense = gradient.to_dense()
    return any(
        size > 1 and bool((dense == dense.narrow(axis, 0, 1)).all()) for axis, size in enumerate(dense.shape)
    ) and bool((dense != 0).any())
