"""Writes into gradients once an optimizer has stepped with them, in one call of a training loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
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
class LateWrite:
    """An operation that changed gradients after the step which used them, and where it was called."""

    operation: str
    place: Place


def late_writes(sp: BuiltModule, call: Callable[[], object]) -> list[LateWrite]:
    """Those of one call of the loop that change values: not where gradients are cleared, or added to by backward.

    Gradients are made large once they are used, so that a limit to their size shows.
    """
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = _Watcher(places)
    hooks = (
        register_optimizer_step_pre_hook(watcher.before_step),
        register_optimizer_step_post_hook(watcher.after_step),
    )
    try:
        with watcher:
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return watcher.found


class _Watcher(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: list[LateWrite] = []
        self._places = places
        self._used: set[int] = set()  # where gradients lie with which an optimizer has stepped
        self._depth = 0

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Let the optimizer do with gradients what it likes."""
        self._depth += 1

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Take note of the gradients that it has used."""
        self._depth -= 1
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient.detach().mul_(_LARGE)
        self._used |= {gradient.data_ptr() for gradient in gradients}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; of the autograd engine's, which adds up gradients, nothing is said."""
        written = self._used_among(written_arguments(func, args, kwargs)) if self._used and not self._depth else []
        if not written or overwrites(func) or operation_name(func) in _OF_THE_NEXT_STEP:
            self._used -= {tensor.data_ptr() for tensor in written}
            return func(*args, **kwargs)
        before = [tensor.clone() for tensor in written]
        answer = func(*args, **kwargs)
        place, is_of_the_subject = self._places.here()
        if is_of_the_subject and not all(map(torch.equal, before, written)):
            self.found.append(LateWrite(operation_name(func), place))
        return answer

    def _used_among(self, values: list[Any]) -> list[Tensor]:
        return [tensor for tensor in tensors_in(values) if tensor.data_ptr() in self._used]
