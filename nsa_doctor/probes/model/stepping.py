"""Takes steps of a given training loop and records what the optimizer was given and what it did."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import new_optimizer, take_step


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the loop: the loss it returned, what each parameter's gradient was when the optimizer stepped (none
    when it did not), each parameter before and after the call, and the line that called the optimizer.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    replaced: frozenset[str]
    place: Place
    num_calls: int

    @property
    def squared_gradient(self) -> float:
        """Sum of squares of all gradients."""
        return sum(float(gradient.double().square().sum()) for gradient in self.gradients.values())

    def moved(self) -> set[str]:
        """Names of the parameters that changed."""
        kept = {name: value for name, value in self.before.items() if name in self.after}
        return {name for name, value in kept.items() if not torch.equal(value, self.after[name])} - self.replaced


def step(sp: BuiltModule, optimizer: torch.optim.Optimizer, x: Tensor) -> Step:
    """Take one step and record it."""
    places, calls = Places(FrameFilter(sp.subject.packages)), []
    places.know(sp.module)
    named = list(sp.module.named_parameters())
    gradients: dict[str, Tensor] = {}
    before = _values(sp.module)

    def stepping(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        calls.append(places.here()[0])
        gradients.update({name: p.grad.detach().clone() for name, p in named if p.grad is not None})

    hook = optimizer.register_step_pre_hook(stepping)
    try:
        with preserved_state(), torch.enable_grad():
            loss = take_step(sp, optimizer, x)
    finally:
        hook.remove()
    place = calls[0] if calls else Place()
    has_class = bool(place.module_class)
    return Step(
        loss=loss,
        gradients=gradients,
        before=before,
        after=_values(sp.module),
        replaced=frozenset(name for name, p in sp.module.named_parameters() if p is not dict(named).get(name, p)),
        place=place if has_class else replace(place, module_class=type(sp.module).__name__),
        num_calls=len(calls),
    )


def twin(sp: BuiltModule) -> BuiltModule | None:
    """The specimen as it is now, copied, without gradients; None when it cannot be copied."""
    copied = attempt(lambda: copy.deepcopy(sp.module))
    if isinstance(copied, Caught):
        return None
    copied.zero_grad(set_to_none=True)
    return replace(sp, module=copied)


def first_step(sp: BuiltModule, x: Tensor, rate: float) -> Step:
    """One step by plain gradient descent at that rate."""
    return step(sp, new_optimizer(sp.module, rate), x)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
