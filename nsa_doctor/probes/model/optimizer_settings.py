"""What the optimizers of a training loop are set to, and whether steps follow it."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.subject.contract import Subject

NUM_STEPS = 8  # by then an average over steps counts, in RAdam too
_RATES = re.compile(r"lr|learning_rate")
_NAMES = re.compile(r"momentum|weight_decay|betas?\d?")
_DECAYED = 0.1  # of a parameter, by a step of the decay that is tried

_Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class OptimizerSetting:
    """A number by which an optimizer steps: which of several where it is one of a tuple; another to try; its code."""

    kind: type[_Optimizer]
    name: str
    index: int | None
    value: float
    other: float

    def __str__(self) -> str:
        return f"{self.name}{'' if self.index is None else f'[{self.index}]'}={self.value:g}"

    @property
    def place(self) -> Place:
        """Where the optimizer's step is defined."""
        code = getattr(inspect.unwrap(self.kind.step), "__code__", None)
        if code is None:
            return Place()
        return Place(file=code.co_filename, line=code.co_firstlineno, function="step")

    def change(self, optimizer: _Optimizer) -> None:
        """Put the other number wherever such an optimizer keeps this one."""
        if type(optimizer) is not self.kind:
            return
        for kept in (*optimizer.param_groups, optimizer.defaults, vars(optimizer)):
            if self.name in kept:
                kept[self.name] = self._changed(kept[self.name])

    def _changed(self, given: Any) -> Any:
        if self.index is None:
            return self.other if given == self.value else given
        if not isinstance(given, (tuple, list)) or len(given) <= self.index or given[self.index] != self.value:
            return given
        return type(given)(self.other if at == self.index else each for at, each in enumerate(given))


def settings_not_followed(subject: Subject, length: int) -> list[OptimizerSetting]:
    """Settings of which another value leaves every parameter as it is after some steps, where the rate is followed."""
    seen: dict[str, OptimizerSetting] = {}

    def note(optimizer: _Optimizer) -> None:
        seen.update((f"{each.kind.__name__} {each}", each) for each in _settings(optimizer))

    due = _trained(subject, length, note)
    rates = [each for each in seen.values() if _RATES.fullmatch(each.name)]
    if not rates or any(_are_equal(_trained(subject, length, each.change), due) for each in rates):
        return []
    others = [each for each in seen.values() if each not in rates]
    return [each for each in others if _are_equal(_trained(subject, length, each.change), due)]


def _settings(optimizer: _Optimizer) -> Iterator[OptimizerSetting]:
    """Those that are not zero, of groups in which something has a gradient."""
    for group in optimizer.param_groups:
        if not any(each.grad is not None and each.grad.any() for each in group["params"]):
            continue
        rate = next((float(each) for name, each in group.items() if _RATES.fullmatch(name) and _is_number(each)), 0.0)
        for name, value in group.items():
            if not isinstance(name, str) or not (_RATES.fullmatch(name) or _NAMES.fullmatch(name)):
                continue
            for index, each in enumerate(value) if isinstance(value, (tuple, list)) else ((None, value),):
                if _is_number(each) and each:
                    other = _DECAYED / rate if name == "weight_decay" and rate else float(each) / 2
                    yield OptimizerSetting(type(optimizer), name, index, float(each), other)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _trained(subject: Subject, length: int, before: Callable[[_Optimizer], None]) -> Mapping[str, Tensor]:
    """The parameters after some steps of a loop begun afresh; `before` is called with what steps."""
    begun = BegunLoop.of(subject)
    for index in range(NUM_STEPS):
        seed = subject.seed + 2 * index
        with _before_steps(before):
            taken = begun.step(begun.batches(length, seed), seed)
    return taken.after


@contextmanager
def _before_steps(call: Callable[[_Optimizer], None]) -> Iterator[None]:
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: call(optimizer))
    try:
        yield
    finally:
        hook.remove()


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
