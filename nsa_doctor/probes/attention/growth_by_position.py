"""How the output grows from the first token to the last, if all tokens are equal.

A mean over equal values is one of them, and a state that forgets comes to rest: then no token is larger than another
but for its position. A sum that nothing divides grows with the number of tokens, by a power of one; a larger power is
a sum of sums, or a sum that is multiplied by what should divide it.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.recording import Operation
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.tensors.operations import tensors_in

LENGTH = 512
FEWEST = 64
_POWER = 1.5
_OF_INPUT = 0.5  # a power that what a module is given may have
_LEAST_AXIS = 8  # where tokens are taken in blocks


@dataclass(frozen=True)
class Growth:
    """The first module, "" the subject itself, whose output grows where its input does not, and by which power."""

    name: str
    module: nn.Module
    power: float


def growing(sp: BuiltModule, length: int) -> Growth | None:
    """The first module to end whose output [B, S, …] grows by a power of more than 1.5 of the position, if any does."""
    found: list[tuple[nn.Module, float]] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = [each for each in tensors_in(args, kwargs) if _has_tokens(each, length)]
        made = [each for each in tensors_in(output) if _has_tokens(each, length)]
        if not given or not made or any(power_of(each, 1) > _OF_INPUT for each in given):
            return
        power = max(power_of(each, 1) for each in made)
        if power > _POWER:
            found.append((module, power))

    names = {module: name for name, module in sp.module.named_modules()}
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in names]
    try:
        with torch.no_grad():
            output = sp(equal_tokens(sp, length))
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return Growth(names[found[0][0]], *found[0])
    power = power_of(output, 1)
    return Growth("", sp.module, power) if power > _POWER else None


def line_of_growth(sp: BuiltModule, length: int, growth: Growth) -> Place | None:
    """The first operation of the module whose result grows so along tokens or blocks of them; None without one."""
    recording = recording_of(sp, lambda: sp(equal_tokens(sp, length)))
    call = next((each for each in recording.calls if growth.name and each.module is growth.module), None)
    operations = recording.operations if call is None else recording.operations[call.start : call.end]
    return next((each.place for each in operations if each.place.file and _grows(each, length)), None)


def equal_tokens(sp: BuiltModule, length: int) -> Tensor:
    """Two rows, each of one token over and over."""
    x = sp.input(length, batch=2)
    return x[:, :1].expand_as(x).clone()


def power_of(tensor: Tensor, axis: int) -> float:
    """By which power of the place along an axis its values grow, in both of two stretches; minus infinity for none."""
    size = tensor.shape[axis]
    squares = tensor.detach().double().abs().square().movedim(axis, 0).flatten(1)
    if squares.shape[1] == 0 or not bool(squares.isfinite().all()):
        return -math.inf
    sizes = squares.mean(1).sqrt()
    known = [(place, float(sizes[place - 1])) for place in (max(1, size // 16), size // 4, size)]
    if any(each <= 0 for _, each in known):
        return -math.inf
    return min(math.log(large / small) / math.log(last / first) for (first, small), (last, large) in pairwise(known))


def _has_tokens(tensor: Tensor, length: int) -> bool:
    return tensor.ndim >= 3 and tensor.shape[1] == length and tensor.is_floating_point()


def _grows(operation: Operation, length: int) -> bool:
    for result in operation.results:
        axes = [axis for axis, size in enumerate(result.shape) if size >= _LEAST_AXIS and length % size == 0]
        if result.is_floating_point() and any(power_of(result, axis) > _POWER for axis in axes):
            return True
    return False
