"""Takes steps of a given training loop and records what optimizers were given and what became of the parameters."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import new_optimizer, take_step

_MADE_AT: WeakKeyDictionary[torch.optim.Optimizer, Place] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the loop: the loss it returned and each parameter before and after.

    `gradients` is what each parameter's gradient was when an optimizer stepped; where none did, what backward left.
    `num_calls` counts the steps of all optimizers, `own` names those that the loop was not handed, `held` are the
    parameters that those which stepped hold, `rates` their learning rates, and `steppers` what they step by.
    `num_backwards` counts backward passes, and `num_late` those after the last step. `place` is the line that called an
    optimizer, and `made_at` that which made it, where that was seen.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    replaced: frozenset[str]
    place: Place
    num_calls: int
    own: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()
    rates: tuple[float, ...] = ()
    steppers: tuple[Callable[..., Any], ...] = ()
    num_backwards: int = 0
    num_late: int = 0
    made_at: Place = field(default_factory=Place)

    @property
    def is_made(self) -> bool:
        """Whether a step was made: by an optimizer, or by the loop itself."""
        return bool(self.num_calls or self.moved())

    @property
    def is_ahead(self) -> bool:
        """Whether every backward pass came after the optimizer had stepped."""
        return bool(self.num_calls) and 0 < self.num_backwards == self.num_late

    @property
    def squared_gradient(self) -> float:
        """Sum of squares of all gradients."""
        return sum(float(gradient.double().square().sum()) for gradient in self.gradients.values())

    @property
    def relative_change(self) -> float:
        """How far all parameters moved, in units of their own size."""
        change = [self.after[name].double() - value.double() for name, value in self._kept.items()]
        size = sum(float(value.double().square().sum()) for value in self._kept.values())
        moved = sum(float(each.square().sum()) for each in change)
        return (moved / size) ** 0.5 if size else 0.0

    @property
    def _kept(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.before.items() if name in self.after and name not in self.replaced}

    def moved(self) -> set[str]:
        """Names of the parameters that changed."""
        return {name for name, value in self._kept.items() if not torch.equal(value, self.after[name])}


@dataclass
class _Record:
    """What was seen in one call."""

    places: Places
    handed: torch.optim.Optimizer | None
    named: list[tuple[str, nn.Parameter]]
    stepped: dict[str, Tensor] = field(default_factory=dict)
    delivered: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    calls: list[Place] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    num_before: int = 0
    takes_closure: bool = False

    @property
    def num_backwards(self) -> int:
        return max(self.counts.values(), default=0)

    def stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.calls.append(self.places.here()[0])
        self.takes_closure |= any(callable(each) for each in (*args, *kwargs.values()) if each is not optimizer)
        self.stepped.update({name: p.grad.detach().clone() for name, p in self.named if p.grad is not None})
        self.optimizers.append(optimizer)
        rates = (group.get("lr") for group in optimizer.param_groups)
        self.rates += [float(rate) for rate in rates if isinstance(rate, (Real, Tensor))]
        self.num_before = self.num_backwards

    def deliver(self, name: str, parameter: Tensor) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if parameter.grad is not None:
            self.delivered[name] = parameter.grad.detach().clone()


def step(sp: BuiltModule, optimizer: torch.optim.Optimizer, x: Tensor) -> Step:
    """Take one step and record it."""
    return recorded(sp, lambda: take_step(sp, optimizer, x), optimizer)


def recorded(sp: BuiltModule, call: Callable[[], float], optimizer: torch.optim.Optimizer | None = None) -> Step:
    """Record one call of the loop, which is handed this optimizer, or has its own."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    named = list(sp.module.named_parameters())
    record = _Record(places, optimizer, named)
    before = _values(sp.module)
    with _recording(record), preserved_state(), torch.enable_grad():
        loss = call()
    place = record.calls[0] if record.calls else Place()
    held = {id(p) for each in record.optimizers for group in each.param_groups for p in group["params"]}
    return Step(
        loss=loss,
        gradients=record.stepped if record.calls and not record.takes_closure else record.delivered,
        before=before,
        after=_values(sp.module),
        replaced=frozenset(name for name, p in sp.module.named_parameters() if p is not dict(named).get(name, p)),
        place=in_subject(place, sp.module),
        num_calls=len(record.calls),
        own=_own(record),
        held=frozenset(name for name, p in named if id(p) in held),
        rates=tuple(record.rates),
        steppers=tuple(type(each).step for each in record.optimizers),
        num_backwards=record.num_backwards,
        num_late=record.num_backwards - record.num_before if record.calls and not record.takes_closure else 0,
        made_at=next((_MADE_AT[each] for each in record.optimizers if each in _MADE_AT), Place()),
    )


def _own(record: _Record) -> tuple[str, ...]:
    """Optimizers that stepped in place of the one handed over."""
    others = (type(each).__name__ for each in record.optimizers if each is not record.handed)
    return () if record.handed is None else tuple(dict.fromkeys(others))


@contextmanager
def _recording(record: _Record) -> Iterator[None]:
    """Watch every optimizer there is, the loop's own too, and what backward delivers to each parameter."""
    make = torch.optim.Optimizer.__init__

    def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        _MADE_AT[optimizer] = record.places.here()[0]

    hooks = [register_optimizer_step_pre_hook(record.stepping)]
    for name, parameter in record.named:
        if parameter.requires_grad and parameter.is_leaf:
            deliver = lambda leaf, name=name: record.deliver(name, leaf)  # noqa: E731
            hooks.append(parameter.register_post_accumulate_grad_hook(deliver))
    try:
        with patch.object(torch.optim.Optimizer, "__init__", made):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def twin(sp: BuiltModule) -> BuiltModule | None:
    """The module as it is now, copied, without gradients; None when it cannot be copied."""
    copied = attempt(lambda: copied_module(sp.module))
    if isinstance(copied, Caught):
        return None
    copied.zero_grad(set_to_none=True)
    return replace(sp, module=copied)


def first_step(sp: BuiltModule, x: Tensor, rate: float) -> Step:
    """One step by plain gradient descent at that rate."""
    return step(sp, new_optimizer(sp.module, rate), x)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
