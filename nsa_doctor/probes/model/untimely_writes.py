"""Changes of gradients before all of a step's are summed, or once an optimizer has stepped with them."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, overwrites, tensors_in, written_arguments

_LARGE = 1e6
_OF_THE_NEXT_STEP = ("foreach_zero_", "add_", "foreach_add_")


@dataclass(frozen=True)
class UntimelyWrite:
    """An operation that changed gradients, where it was called, and whether an optimizer had stepped with them."""

    operation: str
    place: Place
    is_late: bool


def late_writes(sp: BuiltModule, call: Callable[[], object]) -> list[UntimelyWrite]:
    """Those of one call of the loop that change gradients which an optimizer has used: not where they are cleared.

    Gradients are made large once they are used, so that a limit to their size shows.
    """
    return [write for write, _ in _watched(sp, call, 1.0) if write.is_late]


def early_writes(sp: BuiltModule, call: Callable[[], object]) -> list[UntimelyWrite]:
    """Those of one call of the loop that limit gradients to which a later backward pass of the same step adds.

    Gradients are made large, and small, as they come: what changes both in one proportion, as a mean that runs over
    micro-batches does, is no limit. The weights are of no use afterwards.
    """
    small = _watched(sp, call, 1 / _LARGE)
    large = _watched(sp, call, _LARGE)
    proportions = [factor for write, factor in small if not write.is_late]
    found = [(write, factor) for write, factor in large if not write.is_late]
    return [
        write
        for index, (write, factor) in enumerate(found)
        if len(proportions) <= index or not math.isclose(proportions[index], factor, rel_tol=1e-3)
    ]


def _watched(sp: BuiltModule, call: Callable[[], object], scale: float) -> list[tuple[UntimelyWrite, float]]:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = _Watcher(places, scale)
    with ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(watcher.before_step).remove)
        hooks.callback(register_optimizer_step_post_hook(watcher.after_step).remove)
        for parameter in sp.module.parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(watcher.after_sum).remove)
        hooks.enter_context(watcher)
        call()
    return watcher.found


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places, scale: float) -> None:
        super().__init__()
        self.found: list[tuple[UntimelyWrite, float]] = []
        self._places, self._scale = places, scale
        self._used: set[int] = set()  # where gradients lie with which an optimizer has stepped
        self._summed: set[int] = set()  # where those lie that backward passes have added to since
        # What changed them, beside them: memory that is held is lent to no other.
        self._changed: dict[int, tuple[Tensor, tuple[UntimelyWrite, float]]] = {}
        self.is_own = False  # what is done is torch's or the doctor's own

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Let the optimizer do with gradients what it likes."""
        self.is_own = True

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take note of the gradients that it has used."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient.detach().mul_(_LARGE)
        self._used |= {gradient.data_ptr() for gradient in gradients}
        self._summed.clear()
        self._changed.clear()
        self.is_own = False

    def after_sum(self, parameter: nn.Parameter) -> None:
        """A backward pass has added to a gradient: what was done to it before was done too early."""
        gradient = parameter.grad
        if gradient is None:
            return
        at = gradient.data_ptr()
        _, early = self._changed.pop(at, (None, None))
        if early is not None and early not in self.found:
            self.found.append(early)
        if self._scale != 1:
            with _own(self):
                gradient.detach().mul_(self._scale)
        self._used.discard(at)  # memory that was given back, and lent again
        self._summed.add(at)

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; of the autograd engine's, which adds up gradients, nothing is said."""
        known = self._used | self._summed
        given = written_arguments(func, args, kwargs) if known and not self.is_own else []
        written = [tensor for tensor in tensors_in(given) if tensor.data_ptr() in known]
        if not written or overwrites(func) or operation_name(func) in _OF_THE_NEXT_STEP:
            self._used -= {tensor.data_ptr() for tensor in written}
            if overwrites(func) or operation_name(func) == "foreach_zero_":
                for tensor in written:
                    self._changed.pop(tensor.data_ptr(), None)
            return func(*args, **kwargs)
        before = [tensor.clone() for tensor in written]
        answer = func(*args, **kwargs)
        place, is_of_the_subject = self._places.here()
        if is_of_the_subject and not all(map(torch.equal, before, written)):
            self._note(operation_name(func), place, before, written)
        return answer

    def _note(self, operation: str, place: Place, before: list[Tensor], written: list[Tensor]) -> None:
        factor = _norm(written) / max(_norm(before), 1e-300)
        late = [tensor for tensor in written if tensor.data_ptr() in self._used]
        if late:
            self.found.append((UntimelyWrite(operation, place, is_late=True), factor))
        else:
            change = UntimelyWrite(operation, place, is_late=False), factor
            self._changed |= {tensor.data_ptr(): (tensor, change) for tensor in written}


@contextmanager
def _own(watcher: _Watcher) -> Iterator[None]:
    """What happens in this region is not the loop's."""
    before, watcher.is_own = watcher.is_own, True
    try:
        yield
    finally:
        watcher.is_own = before


def _norm(values: list[Tensor]) -> float:
    return math.sqrt(sum(float(value.detach().double().square().sum()) for value in values))
