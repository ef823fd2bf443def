"""How the output grows from the first token to the last, if all tokens are equal.

A mean over equal values is one of them, and a state that forgets comes to rest: then no token is larger than another
but for its position. A sum that nothing divides grows with the number of tokens, by a power of one; a larger power is
a sum of sums, or a sum that is multiplied by what should divide it; a state that is multiplied at each token grows by
no power at all.
"""

import math
import re
from collections.abc import Iterator, Sequence
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
_ENDLESS = 3.0  # a power that only what grows by a factor has, and more of it the longer it grows
_LEAST_AXIS = 8  # where tokens are taken in blocks
_ATTENTION = re.compile(r"att(entio)?n|retention", re.IGNORECASE)
_STATE = re.compile(r"ssm|mamba|s[456]d?$|lru|scan|recurr|rnn|gru|lstm|retention|delta|gla$|rwkv|state", re.IGNORECASE)

_Powers = tuple[float, float]


@dataclass(frozen=True)
class Growth:
    """The first module, "" the subject itself, whose output grows where its input does not, and by which power.

    `is_promised` where its name says that it does not: an attention, or, of what grows without end, a state.
    """

    name: str
    module: nn.Module
    power: float
    is_promised: bool


def growing(sp: BuiltModule, length: int) -> Growth | None:
    """The first module to end whose output grows by a power of more than 1.5 of the position, if any does.

    One that promises not to goes first. Not one whose output is the same for another token, or that beside it gives
    one which shrinks as fast, as a decay and its inverse do.
    """
    names = {module: name for name, module in sp.module.named_modules()}
    grown, others = _grown(sp, length, names, token=0), _grown(sp, length, names, token=1)
    found = [
        Growth(names[module], module, min(powers), _is_promised(module, names[module], powers))
        for module, (powers, sizes) in grown.items()
        if module in others and not torch.equal(sizes, others[module][1])
    ]
    return min(found, key=lambda growth: not growth.is_promised, default=None)


def _is_promised(module: nn.Module, name: str, powers: _Powers) -> bool:
    words = f"{name.rpartition('.')[2]} {type(module).__name__}".split()
    first, last = powers
    is_endless = last > max(_ENDLESS, 2 * first)
    return any(_ATTENTION.search(word) or (is_endless and _STATE.search(word)) for word in words)


def _grown(
    sp: BuiltModule, length: int, names: dict[nn.Module, str], token: int
) -> dict[nn.Module, tuple[_Powers, Tensor]]:
    """The powers and sizes of outputs of modules that grow, in the order in which they end; the subject's own last."""
    found: dict[nn.Module, tuple[_Powers, Tensor]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = list(_powers_in(tensors_in(args, kwargs), length))
        if given and all(max(powers) <= _OF_INPUT for powers, _ in given):
            keep(module, list(_powers_in(tensors_in(output), length)))

    def keep(module: nn.Module, made: Sequence[tuple[_Powers, Tensor]]) -> None:
        largest = max(made, key=lambda each: min(each[0]), default=None)
        shrinks = any(max(powers) < -_POWER for powers, _ in made)
        if largest is not None and min(largest[0]) > _POWER and not shrinks:
            found.setdefault(module, largest)

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in names]
    try:
        with torch.no_grad():
            output = sp(equal_tokens(sp, length, token))
    finally:
        for handle in handles:
            handle.remove()
    keep(sp.module, list(_powers_in([output], length)))
    return found


def line_of_growth(sp: BuiltModule, length: int, growth: Growth) -> Place | None:
    """The first operation of the module whose result grows so along tokens, or else blocks; None without one."""
    recording, other = (recording_of(sp, lambda token=token: sp(equal_tokens(sp, length, token))) for token in (0, 1))
    call = next((each for each in recording.calls if growth.name and each.module is growth.module), None)
    first, last = (0, len(recording.operations)) if call is None else (call.start, call.end)
    pairs = list(zip(recording.operations, other.operations, strict=False))[first:last]
    placed = [each for each, beside in pairs if each.place.file and not _are_equal(each, beside)]
    along = (each.place for sizes in ((length,), _parts(length)) for each in placed if _grows(each, sizes))
    return next(along, None)


def _are_equal(operation: Operation, other: Operation) -> bool:
    """Whether they give the same for another token: a function of positions alone."""
    return len(operation.results) == len(other.results) and all(map(torch.equal, operation.results, other.results))


def equal_tokens(sp: BuiltModule, length: int, token: int = 0) -> Tensor:
    """Two rows, each of one token over and over: that which stands there in others."""
    x = sp.input(length, batch=2)
    return x[:, token : token + 1].expand_as(x).clone()


def powers_of(tensor: Tensor, axis: int) -> tuple[_Powers, Tensor]:
    """By which power of the place along an axis its values grow, in each of two stretches, and their sizes there.

    Minus infinity where they are zero or not finite.
    """
    size = tensor.shape[axis]
    values = tensor.detach().abs().double().movedim(axis, 0).reshape(size, -1)
    if not values.numel():
        return (-math.inf, -math.inf), values
    largest = values.amax(1)
    sizes = (values / largest[:, None].clamp(min=1e-300)).square().mean(1).sqrt() * largest
    known = [(place, float(sizes[place - 1])) for place in (max(1, size // 16), size // 4, size)]
    if any(not 0 < each < math.inf for _, each in known):
        return (-math.inf, -math.inf), sizes
    first, last = (math.log(large / small) / math.log(end / start) for (start, small), (end, large) in pairwise(known))
    return (first, last), sizes


def _powers_in(tensors: Sequence[Tensor], length: int) -> Iterator[tuple[_Powers, Tensor]]:
    """Of every tensor with tokens of some width: of one axis alone as long as there are tokens."""
    for each in tensors:
        axes = [axis for axis, size in enumerate(each.shape) if size == length]
        if each.ndim > 2 and len(axes) == 1 and (each.is_floating_point() or each.is_complex()):
            yield powers_of(each, axes[0])


def _parts(length: int) -> tuple[int, ...]:
    return tuple(size for size in range(_LEAST_AXIS, length) if length % size == 0)


def _grows(operation: Operation, sizes: Sequence[int]) -> bool:
    for result in operation.results:
        axes = [axis for axis, size in enumerate(result.shape) if size in sizes]
        is_number = result.is_floating_point() or result.is_complex()
        if is_number and any(min(powers_of(result, axis)[0]) > _POWER for axis in axes):
            return True
    return False
