"""Parameters that start where the function which reads them is flat, such as a clamp that ends below them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, is_view, memory_of, parameter_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_FLAT_SOMEWHERE = frozenset({
    "clamp", "clamp_min", "clamp_max", "clip", "relu", "relu6", "hardtanh", "hardsigmoid", "hardswish", "threshold",
    "minimum", "maximum", "sigmoid", "tanh",
})  # fmt: skip
_EACH_BY_ITSELF = frozenset({
    "exp", "to", "type", "type_as", "float", "double", "neg", "mul", "__mul__", "__rmul__", "div", "__truediv__", "add",
    "__add__", "__radd__", "__neg__", "clone", "log",
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
    named = {memory_of(each): name for name, each in sp.module.named_parameters() if each.requires_grad}
    seen = watched_loss(sp, call, lambda places: _Watch(places, named))
    if isinstance(seen, Caught):
        return seen
    watch, answer = seen
    found = {name: how for name, how in watch.flat.items() if name not in watch.otherwise}
    read = {name: parameter_at(sp.module, name) for name in found}
    moved = {name for name, each in read.items() if _is_moved(each, tensors_in(answer))}
    return [FlatStart(name, float(read[name].max()), *how) for name, how in found.items() if name not in moved]


def _is_moved(parameter: nn.Parameter, answers: Sequence[Tensor]) -> bool:
    """Whether it got a gradient in the call, or gets one from what that answered: code may read it unseen."""
    ends = [each.sum() for each in answers if each.requires_grad]
    found = attempt(lambda: torch.autograd.grad(ends, [parameter], retain_graph=True, allow_unused=True)[0])
    return any(isinstance(each, Tensor) and bool(each.any()) for each in (parameter.grad, found))


class _Watch(TorchFunctionMode):
    """Looks at each function that reads a parameter; a function mode is a base class by torch's design."""

    def __init__(self, places: Places, names: dict[int, str]) -> None:
        super().__init__()
        self.flat: dict[str, tuple[str, Place]] = {}  # the function and its line
        self.otherwise: set[str] = set()  # read by a function that has a gradient for it
        self._places, self._names, self._computed = places, names, list[Tensor]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at the parameters that it reads."""
        named = kwargs or {}
        answer = func(*args, **named)
        given = tensors_in(args, named)
        own = [each for each in given if self._name(each)]
        is_another = isinstance(answer, Tensor) and not any(answer is each for each in own)
        if own and is_another and answer.requires_grad and not is_transformed(answer):
            self._look(func, args, named, own, answer)
        return answer

    def _look(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], own: list[Tensor], answer: Tensor) -> None:
        """Take note of one function that reads parameters, or what was computed of one alone."""
        name = getattr(func, "__name__", "")
        is_alone = len(own) == 1 and all(each is own[0] or _is_number(each) for each in tensors_in(args, named))
        if is_alone and name in _FLAT_SOMEWHERE and _is_flat(func, args, named, own[0]):
            self.flat.setdefault(self._name(own[0]), (name, self._places.here()[0]))
        elif is_alone and name in _EACH_BY_ITSELF:
            self._names[memory_of(answer)] = self._name(own[0])
            self._computed.append(answer)
        elif not is_view(answer):
            self.otherwise |= {self._name(each) for each in own}

    def _name(self, tensor: Tensor) -> str:
        """The parameter that a tensor is, is a view of, or is computed of alone; empty where it is none."""
        return self._names.get(memory_of(tensor), "")


def _is_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.requires_grad


def _is_flat(func: Any, args: tuple[Any, ...], named: dict[str, Any], own: Tensor) -> bool:
    """Whether nothing comes back to any value of it."""
    alone = own.detach().requires_grad_()
    given = [alone if each is own else each for each in args]
    by_name = {name: alone if each is own else each for name, each in named.items()}
    gradient = attempt(lambda: torch.autograd.grad(func(*given, **by_name).sum(), alone)[0])
    return isinstance(gradient, Tensor) and bool(gradient.numel()) and not bool(gradient.any())
