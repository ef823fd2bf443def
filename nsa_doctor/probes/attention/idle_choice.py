"""Choices of the largest few of which it is tried whether anything depends on them: the least few are taken instead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, tree_leaves
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.probes.tensors.operations import operation_name


@dataclass(frozen=True)
class Choice:
    """A line that chooses `count` of `of` values."""

    place: Place
    count: int
    of: int


class _Reversed(DispatchWatcher):
    """Notes choices of some of several, and has the one line choose the others' end."""

    def __init__(self, places: Places, line: str) -> None:
        super().__init__()
        self.seen: dict[str, Choice] = {}
        self._places, self._line = places, line

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        if operation_name(func) != "topk" or kwargs:
            return func(*args, **kwargs)
        scores, count, dim, *rest = (*args, *(-1, True, True)[len(args) - 2 :])
        if not scores.ndim or not 0 < count < scores.shape[dim] or torch.equal(scores.amin(dim), scores.amax(dim)):
            return func(*args)  # of equal ones no few are the largest
        place = self._places.here()[0]
        self.seen.setdefault(place.line_text, Choice(place, int(count), int(scores.shape[dim])))
        if place.line_text != self._line:
            return func(*args)
        return func(scores, count, dim, not rest[0], *rest[1:])


def choices(sp: BuiltModule, x: Tensor, line: str = "") -> tuple[Mapping[str, Choice], list[Any]]:
    """The lines that choose, and all that a pass gives: what it returns, gradients, and what the module then holds.

    The one line is had to choose the least for the largest.
    """
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch, answers = _Reversed(places, line), list[Any]()
    handle = sp.module.register_forward_hook(lambda _module, _given, answer: answers.append(answer))
    try:
        with places.watching(), watch:
            done = forward_backward(sp, x)
    finally:
        handle.remove()
    held = [vars(part) for part in sp.module.modules()]
    kept = [value for each in held for name, value in each.items() if not name.startswith("_")]
    given = tree_leaves((done.output, answers, list(done.gradients.values()), kept, list(sp.module.buffers())))
    return watch.seen, [each.detach().clone() if isinstance(each, Tensor) else each for each in given]


def are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether both hold the same tensors, bit for bit, and the same numbers; of anything else nothing is asked."""
    return len(one) == len(other) and all(map(_is_equal, one, other))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return not isinstance(one, Number) or one == other
