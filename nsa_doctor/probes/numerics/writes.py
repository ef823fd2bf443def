"""Which of the tensors a call was given it writes into, and the operation that does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.numerics.divergence import Divergence
from nsa_doctor.probes.tensors.operations import operation_name
from nsa_doctor.subject.contract import Subject

Call = Callable[..., object]


@dataclass(frozen=True)
class Written:
    """How many values of an argument were overwritten, and by what: the module itself where no operation is to blame.

    An operation of "" is none of torch's.
    """

    argument: str
    num_values: int
    num_all: int
    by: Divergence


def first_written(subject: Subject, module: nn.Module, call: Call, given: Mapping[str, Tensor]) -> Written | None:
    """Call with copies of the tensors, in their order: the first whose values are others afterwards, or None."""
    own = {name: tensor.clone() for name, tensor in given.items()}
    with torch.no_grad():
        call(*own.values())
    for name, tensor in own.items():
        if num_values := int(_changed(tensor, given[name]).sum()):
            return Written(name, num_values, tensor.numel(), _writer(subject, module, call, given, name))
    return None


def later_write(subject: Subject, module: nn.Module, held: Tensor, call: Callable[[], object]) -> Divergence | None:
    """What a call that was not given the tensor writes into it; None where its values stay."""
    places = Places(FrameFilter(subject.packages))
    places.know(module)
    watcher, before = _Watcher(held, places), held.clone()
    with places.watching(), watcher:
        call()
    if not bool(_changed(held, before).any()):
        return None
    return watcher.found or Divergence("", definition_place(module))


def _writer(subject: Subject, module: nn.Module, call: Call, given: Mapping[str, Tensor], name: str) -> Divergence:
    places = Places(FrameFilter(subject.packages))
    places.know(module)
    own = {each: tensor.clone() for each, tensor in given.items()}
    watcher = _Watcher(own[name], places)
    with torch.no_grad(), places.watching(), watcher:
        call(*own.values())
    return watcher.found or Divergence("", definition_place(module))


class _Watcher(DispatchWatcher):
    """Looks at a tensor after every operation."""

    def __init__(self, x: Tensor, places: Places) -> None:
        super().__init__()
        self.found: Divergence | None = None
        self._x, self._kept, self._places = x, x.clone(), places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, then compare."""
        result = func(*args, **kwargs)
        if self.found is None and bool(_changed(self._x, self._kept).any()):
            self.found = Divergence(operation_name(func), self._places.here()[0])
        return result


def _changed(tensor: Tensor, before: Tensor) -> Tensor:
    """Where values are others; two NaN are the same."""
    return ~((tensor == before) | (tensor != tensor) & (before != before))
