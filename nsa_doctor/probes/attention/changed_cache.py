"""What a step gives behind a cache that was changed by hand, beside the same tokens without the change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state_fields import fields_of, kept
from nsa_doctor.probes.numerics.compare import Departure, departure

OF_CHANGE = "change of the cache"
"""The phase in which the cache is changed."""

_ROUNDINGS = 1e4  # as where two runs are followed to where they part


@dataclass(frozen=True)
class Continued:
    """How the step departs; `field` is the first of the cache that another way to the same tokens does not hold."""

    departure: Departure
    field: str


@dataclass(frozen=True)
class Parted:
    """How a cache or its copy departs; `field` is the first that a step from the one changes in the other."""

    departure: Departure
    field: str
    is_of_copy: bool


def next_steps(count: int) -> str:
    """`the next step departs`, or that one of so many does."""
    return "the next step departs" if count == 1 else f"one of the next {count} steps departs"


def departed(
    sp: BuiltModule, before: tuple[Tensor, list[int]], change: Callable[[Any], Any], after: Tensor, whole: Tensor
) -> Continued | None:
    """What becomes of the steps that read `after` [B, K, ...], one by one, behind a changed cache.

    The cache is that of `before`, tokens [B, S, ...] fed in parts; `whole` [B, T, ...] are all the tokens that the last
    step should have behind it, those of `after` last.
    """
    module, num_steps = sp.module, after.shape[1]
    eager = [whole.shape[1] - num_steps - 1, *[1] * (num_steps + 1)]
    held = decode(sp, *before).cache
    cache = ask(OF_CHANGE, lambda: change(held), module)
    rightly = decode(sp, whole[:, :-num_steps], eager[:2]).cache
    was, due = kept(fields_of(cache, "cache")), kept(fields_of(rightly, "cache"))
    outputs = []
    for token in after.split(1, dim=1):
        output, cache = _stepped(sp, token, cache)
        outputs.append(output[:, -1:])
    right = decode(sp, whole, eager).output[:, -num_steps:]
    departing = departure(torch.cat(outputs, dim=1), right, floor_of(right))
    if departing is None:
        return None
    return Continued(departing, next((path for path in was if path in due and _differ(was, due, path)), ""))


def parted(sp: BuiltModule, prompt: Tensor, ways: tuple[Tensor, Tensor], fork: Callable[[Any], Any]) -> Parted | None:
    """What becomes of a cache of `prompt` and of its copy, which read the tokens of one of `ways` [B, K, ...] each.

    They do so by turns, the copy first.
    """
    held = decode(sp, prompt, [prompt.shape[1] - 1, 1]).cache
    caches = [ask(OF_CHANGE, lambda: fork(held), sp.module), held]
    outputs: tuple[list[Tensor], list[Tensor]] = ([], [])
    written = ""
    for tokens in zip(*(way.split(1, dim=1) for way in ways), strict=True):
        for index, token in enumerate(tokens):
            other, before = caches[1 - index], kept(fields_of(caches[1 - index], "cache"))
            output, caches[index] = _stepped(sp, token, caches[index])
            outputs[index].append(output[:, -1:].clone())
            now = fields_of(other, "cache")
            written = written or next((path for path in before if path in now and _differ(before, now, path)), "")
    for index, way in enumerate(ways):
        sizes = [prompt.shape[1] - 1, *[1] * (way.shape[1] + 1)]
        right = decode(sp, torch.cat((prompt, way), 1), sizes).output[:, -way.shape[1] :]
        departing = departure(torch.cat(outputs[index], 1), right, floor_of(right))
        if departing is not None:
            return Parted(departing, written, is_of_copy=index == 0)
    return None


def floor_of(right: Tensor) -> Tensor:
    """How far each output [B, S, ...] may lie from what is right, [B, S]."""
    scale = float(right.abs().max()) * _ROUNDINGS * torch.finfo(right.dtype).eps
    return torch.full(right.shape[:2], scale, device=right.device)


def _stepped(sp: BuiltModule, token: Tensor, cache: Any) -> tuple[Tensor, Any]:
    step = sp.subject.step
    assert step is not None
    with torch.no_grad():
        return ask("step", lambda: step(sp.module, token.clone(), cache), sp.module)


def _differ(one: Any, other: Any, path: str) -> bool:
    first, second = one[path].value, other[path].value
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return bool(first != second)
    if first.shape != second.shape:
        return True
    scale = float(second.abs().max()) if second.numel() and second.is_floating_point() else 0.0
    eps = torch.finfo(second.dtype).eps if second.is_floating_point() else 0.0
    return bool(((first.double() - second.double()).abs() > scale * _ROUNDINGS * eps).any())
