"""Losses that are half as large where every row stands twice, and the line that divides."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import number

_DIVIDING = ("div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", "__div__")
_CLOSE = 1e-3
_LEAST = 1e-12


@dataclass(frozen=True)
class Halved:
    """A loss of some rows and of the same rows twice, and the line that divides it."""

    sp: BuiltModule
    plain: float
    doubled: float
    place: Place


def halved_by_rows(sp: BuiltModule, once: Callable[[], Any], twice: Callable[[], Any]) -> Halved | None:
    """What is seen where the second is half of the first, and the first is the same again."""
    with torch.enable_grad():
        plain, again = number(once()), number(once())
        places = Places(FrameFilter(sp.subject.packages))
        places.know(sp.module)
        with places.watching(), _Divisions(places) as divisions:
            doubled = number(twice())
    if abs(plain) < _LEAST or abs(plain - again) > _CLOSE * abs(plain) or abs(2 * doubled / plain - 1) > _CLOSE:
        return None
    return Halved(sp, plain, doubled, divisions.last or definition_place(sp.module))


class _Divisions(TorchFunctionMode):
    """The last line of the subject's that divides a number by another; the base class is torch's."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self.last: Place | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and note the line that divides."""
        answer = func(*args, **(kwargs or {}))
        divides = str(resolve_name(func)).rpartition(".")[2] in _DIVIDING
        if divides and isinstance(answer, Tensor) and answer.dim() <= 1 and isinstance(args[-1], (Real, Tensor)):
            place, is_own = self._places.here()
            self.last = place if is_own else self.last
        return answer
