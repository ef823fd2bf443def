"""Calls of forward with a tensor that stays the caller's: of other dtypes, memory and values, under circumstances."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.core.measurement import VALUES, Point
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.circumstances import circumstances
from nsa_doctor.probes.model.inputs import ascending, begun_again, make_input
from nsa_doctor.subject.contract import Subject

_HALVES = ("bfloat16", "float16")
_NUM_ROWS = 3


@dataclass(frozen=True)
class OddCall:
    """`call(given)` asks forward of a module; `under` says of which circumstance, "" for none."""

    sp: BuiltModule
    given: Tensor
    call: Callable[[Tensor], object]
    under: str = ""


def odd_calls(subject: Subject, length: int) -> Iterator[OddCall]:
    """All of them, each of several rows of so many tokens."""
    for dtype in dict.fromkeys((subject.dtype, "bfloat16", "float64")):
        sp = built(subject, dtype=dtype, is_randomised=False)
        x = sp.input(length, batch=_NUM_ROWS)
        alike = [begun_again(x), *_of_values(sp, length)]
        if not x.is_floating_point():
            alike.append(ascending(x[:, : subject.width], subject.width))
        for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1), *alike):
            yield OddCall(sp, given, sp.call)
    yield from _under_circumstances(subject, length)


class _OfTheTensorGiven(BuiltModule):
    """Is called with the caller's own tensor, not with a copy of it."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.call(x)


def _under_circumstances(subject: Subject, length: int) -> Iterator[OddCall]:
    """Under autocast, and under all that must not matter."""
    plain = built(subject, is_randomised=False)
    sp = _OfTheTensorGiven(subject, plain.module, plain.dtype)
    x, device = sp.input(length, batch=_NUM_ROWS), torch.device(subject.device).type
    for half in _HALVES:
        yield OddCall(sp, x, torch.autocast(device, getattr(torch, half))(sp.call), f"autocast to {half}")
    for each in circumstances(subject, sp.dtype):
        yield OddCall(sp, x, partial(each.call, sp), each.words)


def _of_values(sp: BuiltModule, length: int) -> Iterator[Tensor]:
    points = (Point(length=length, dtype=sp.dtype, values=values) for values in VALUES)
    return (make_input(sp.subject, point, sp.subject.seed, torch.device(sp.subject.device)) for point in points)
