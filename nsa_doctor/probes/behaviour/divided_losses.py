"""Losses whose gradient is half as large where every row stands twice, and the line that divides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import seed_everything

_DIVIDING = ("div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", "__div__")
_MULTIPLYING = ("mul", "mul_", "multiply", "__mul__", "__imul__", "__rmul__")
_CLOSE = 1e-3
_LEAST = 1e-12
Given = TypeVar("Given")


@dataclass(frozen=True)
class Halved:
    """The size of the gradient with some rows and with the same rows twice, and the line that divides the loss."""

    sp: BuiltModule
    plain: float
    doubled: float
    place: Place


def of_loss(sp: BuiltModule, loss: Tensor) -> Mapping[str, Tensor]:
    """The gradients of a loss, which lie on no parameter."""
    named = [(name, each) for name, each in sp.module.named_parameters() if each.requires_grad]
    found = torch.autograd.grad(loss, [each for _, each in named], allow_unused=True)
    return {name: each for (name, _), each in zip(named, found, strict=True) if each is not None}


def halved_by_rows(
    sp: BuiltModule, rows: int, gradients_of: Callable[[Given], Mapping[str, Tensor]], once: Given, twice: Given
) -> Halved | None:
    """What is seen where those with each of some rows twice are half of the plain ones, and these are the same again.

    A line has to divide by the number of rows, or of their tokens: a share of a softmax over the batch is halved too.
    """

    def asked(given: Given) -> Mapping[str, Tensor]:
        seed_everything(sp.subject.seed)
        return gradients_of(given)

    with torch.enable_grad():
        plain, again = asked(once), asked(once)
        places = Places(FrameFilter(sp.subject.packages))
        places.know(sp.module)
        with places.watching(), _Divisions(places, 2 * rows) as divisions:
            doubled = asked(twice)
    size = _size(plain)
    is_steady = size >= _LEAST and _apart(again, plain, 1.0) <= _CLOSE * size
    if divisions.last is None or not is_steady or not _apart(doubled, plain, 0.5) <= _CLOSE * size:
        return None
    return Halved(sp, size, _size(doubled), divisions.last)


def _size(gradients: Mapping[str, Tensor]) -> float:
    return sum(float(each.to_dense().double().square().sum()) for each in gradients.values()) ** 0.5


def _apart(gradients: Mapping[str, Tensor], plain: Mapping[str, Tensor], times: float) -> float:
    """How far they are from so many times the plain ones."""
    if gradients.keys() != plain.keys():
        return float("inf")
    dense = ((gradients[name].to_dense().double(), each.to_dense().double()) for name, each in plain.items())
    return sum(float((one - times * other).square().sum()) for one, other in dense) ** 0.5


class _Divisions(TorchFunctionMode):
    """The last line of the subject's that divides by a multiple of so many rows; the base class is torch's."""

    def __init__(self, places: Places, rows: int) -> None:
        super().__init__()
        self._places, self._rows = places, rows
        self.last: Place | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and note the line that divides."""
        answer = func(*args, **(kwargs or {}))
        name = str(resolve_name(func)).rpartition(".")[2]
        if isinstance(answer, Tensor) and answer.dim() <= 1 and len(args) > 1 and self._is_by_rows(name, args[1]):
            place, is_own = self._places.here()
            self.last = place if is_own else self.last
        return answer

    def _is_by_rows(self, name: str, by: object) -> bool:
        """Whether it divides by the rows, their tokens or values, or multiplies by a part of one of so many."""
        if name not in (*_DIVIDING, *_MULTIPLYING) or not isinstance(by, (Real, Tensor)):
            return False
        if isinstance(by, Tensor) and (by.numel() != 1 or by.requires_grad):
            return False
        value = float(by)
        number = value if name in _DIVIDING or not value else 1 / value
        return round(number) >= self._rows and abs(number - round(number)) < _CLOSE and not round(number) % self._rows
