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
    step, module, num_steps = sp.subject.step, sp.module, after.shape[1]
    assert step is not None
    eager = [whole.shape[1] - num_steps - 1, *[1] * (num_steps + 1)]
    held = decode(sp, *before).cache
    cache = ask(OF_CHANGE, lambda: change(held), module)
    rightly = decode(sp, whole[:, :-num_steps], eager[:2]).cache
    was, due = kept(fields_of(cache, "cache")), kept(fields_of(rightly, "cache"))
    outputs = []
    for token in after.split(1, dim=1):
        with torch.no_grad():
            output, cache = ask("step", lambda token=token, cache=cache: step(module, token.clone(), cache), module)
        outputs.append(output[:, -1:])
    right = decode(sp, whole, eager).output[:, -num_steps:]
    scale = float(right.abs().max()) * _ROUNDINGS * torch.finfo(right.dtype).eps
    floor = torch.full(right.shape[:2], scale, device=right.device)
    departing = departure(torch.cat(outputs, dim=1), right, floor)
    if departing is None:
        return None
    return Continued(departing, next((path for path in was if path in due and _differ(was, due, path)), ""))


def _differ(one: Any, other: Any, path: str) -> bool:
    first, second = one[path].value, other[path].value
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return bool(first != second)
    if first.shape != second.shape:
        return True
    scale = float(second.abs().max()) if second.numel() and second.is_floating_point() else 0.0
    eps = torch.finfo(second.dtype).eps if second.is_floating_point() else 0.0
    return bool(((first.double() - second.double()).abs() > scale * _ROUNDINGS * eps).any())
