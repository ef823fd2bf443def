"""The parameters in what a function that builds an optimizer, or groups for one, returns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nsa_doctor.core.errors import Caught, attempt

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.device, torch.dtype, range)
_OF_SCHEDULES = frozenset({"lr_scheduler", "lr_schedulers", "scheduler", "schedulers", "monitor"})
_MOST = 100_000  # of what is gone through
_DEEPEST = 6


@dataclass
class Collected:
    """`together` are parameters of one optimizer, or of groups for one, each once a group; `loose` are in no group."""

    together: list[list[Tensor]] = field(default_factory=list)
    loose: list[Tensor] = field(default_factory=list)

    @property
    def every(self) -> list[Tensor]:
        """All of them, each once."""
        found = [each for group in self.together for each in group] + self.loose
        return list({id(each): each for each in found}.values())

    @property
    def repeated(self) -> list[Tensor]:
        """Those that are several times in groups of one optimizer."""
        found: dict[int, Tensor] = {}
        for group in self.together:
            counts: dict[int, int] = {}
            for each in group:
                counts[id(each)] = counts.get(id(each), 0) + 1
            found |= {id(each): each for each in group if counts[id(each)] > 1}
        return list(found.values())


def collected(answer: Any) -> Collected:
    """What it holds: of an optimizer, groups, lists of parameters, several of these, with schedules or without.

    Raises TypeError where something in it may hold parameters that are not seen.
    """
    found = Collected()
    _walk(answer, found, set(), 0)
    return found


def is_optimizer(value: object) -> bool:
    """Whether it is one of torch's, or has groups as they have."""
    groups = attempt(lambda: vars(value).get("param_groups")) if not isinstance(value, (type, nn.Module)) else None
    return isinstance(value, torch.optim.Optimizer) or (isinstance(groups, list) and bool(groups))


def _walk(value: Any, found: Collected, seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    if depth > _DEEPEST:
        raise TypeError("expected groups of parameters, got something deeper")
    if isinstance(value, Tensor):
        found.loose += _trained([value])
        return
    seen.add(id(value))
    if is_optimizer(value):
        found.together.append([each for group in value.param_groups for each in _members(group)])
    elif isinstance(value, (LRScheduler, ReduceLROnPlateau)):
        _walk(value.optimizer, found, seen, depth + 1)
    elif isinstance(value, Mapping):
        if "params" in value:
            found.together.append(list(_members(value)))
            return
        for name, each in value.items():
            if name not in _OF_SCHEDULES:
                _walk(each, found, seen, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset, Iterator)):
        held = list(islice(value, _MOST))
        if held and all(isinstance(each, Mapping) and "params" in each for each in held):
            found.together.append([each for group in held for each in _members(group)])
            return
        for each in held:
            _walk(each, found, seen, depth + 1)
    else:
        _walk_object(value, found, seen, depth)


def _walk_object(value: Any, found: Collected, seen: set[int], depth: int) -> None:
    """A wrapper of an optimizer, or something beside it that holds nothing."""
    held = attempt(lambda: dict(vars(value)))
    if isinstance(held, Caught) or isinstance(value, nn.Module):
        raise TypeError(f"expected an optimizer or parameters, got {type(value).__name__}")
    several = [each for value in held.values() for each in (value if isinstance(value, (list, tuple)) else [value])]
    inner = [each for each in several if is_optimizer(each)]
    inner += [held[name] for name in ("optimizer", "_optimizer", "optimizers", "_optimizers") if name in held]
    if any(_may_hold(each) for each in (several if inner else held.values()) if not is_optimizer(each)):
        raise TypeError(f"expected an optimizer or parameters, got {type(value).__name__}")
    for each in inner:
        _walk(each, found, seen, depth + 1)


def _may_hold(value: object) -> bool:
    return isinstance(value, (Tensor, nn.Module, list, tuple, Mapping))


def _members(group: Mapping[str, Any]) -> Iterator[Tensor]:
    """Parameters of one group, each once, which may come with their names."""
    held = group["params"]
    every = [held] if isinstance(held, Tensor) else held if isinstance(held, Iterable) else []
    tensors = [inner for each in every for inner in _trained(each if isinstance(each, tuple) else [each])]
    yield from {id(each): each for each in tensors}.values()


def _trained(values: Iterable[Any]) -> list[Tensor]:
    """Tensors that an optimizer may step."""
    tensors = [each for each in values if isinstance(each, Tensor)]
    return [each for each in tensors if isinstance(each, nn.Parameter) or (each.requires_grad and each.is_leaf)]
