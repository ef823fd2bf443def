"""Parameters that start where the function which reads them is flat, such as a clamp that ends below them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, is_view, memory_of, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.operations import tensors_in

_FLAT_SOMEWHERE = frozenset({
    "clamp", "clamp_min", "clamp_max", "clip", "relu", "relu6", "hardtanh", "hardsigmoid", "hardswish", "threshold",
    "minimum", "maximum", "sigmoid", "tanh",
})  # fmt: skip


@dataclass(frozen=True)
class FlatStart:
    """A parameter by its name, its largest value, and the function and line that get no gradient to it."""

    parameter: str
    value: float
    function: str
    place: Place


def flat_starts(sp: BuiltModule, call: Callable[[], Any]) -> list[FlatStart] | Caught:
    """Those which one call reads by such a function alone; what it raises, if it raises."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    named = sp.module.named_parameters()
    watch = _Watch(places, {memory_of(each): name for name, each in named if each.requires_grad})

    def watched() -> None:
        with preserved_state(), torch.enable_grad(), uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with places.watching(), watch:
                call()

    with unobserved():
        ended = attempt(watched)
    if isinstance(ended, Caught):
        return ended
    return [each for name, each in watch.flat.items() if name not in watch.otherwise]


class _Watch(TorchFunctionMode):
    """Looks at each function that reads a parameter; a function mode is a base class by torch's design."""

    def __init__(self, places: Places, names: dict[int, str]) -> None:
        super().__init__()
        self.flat: dict[str, FlatStart] = {}
        self.otherwise: set[str] = set()  # read by a function that has a gradient for it
        self._places, self._names = places, names

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at the parameters that it reads."""
        named = kwargs or {}
        answer = func(*args, **named)
        if isinstance(answer, Tensor) and answer.requires_grad and not is_transformed(answer):
            name, given = getattr(func, "__name__", ""), tensors_in(args, named)
            own = [each for each in given if self._name(each)]
            if len(own) == 1 and name in _FLAT_SOMEWHERE and self._is_flat(func, args, named, own[0]):
                start = FlatStart(self._name(own[0]), float(own[0].detach().max()), name, self._places.here()[0])
                self.flat.setdefault(start.parameter, start)
            elif not is_view(answer):
                self.otherwise |= {self._name(each) for each in own}
        return answer

    def _name(self, tensor: Tensor) -> str:
        """The parameter that a tensor is, or is a view of; empty where it is none."""
        return self._names.get(memory_of(tensor), "")

    def _is_flat(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], own: Tensor) -> bool:
        """Whether nothing comes back to any value of it, and what else is given is fixed."""
        if any(each.requires_grad for each in tensors_in(args, named) if each is not own) or not own.numel():
            return False
        alone = own.detach().requires_grad_()
        given = [alone if each is own else each for each in args]
        by_name = {name: alone if each is own else each for name, each in named.items()}
        gradient = attempt(lambda: torch.autograd.grad(func(*given, **by_name).sum(), alone)[0])
        return isinstance(gradient, Tensor) and not bool(gradient.any())
