"""What the optimizers of a training loop are set to, and whether steps follow it."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.subject.contract import Subject

_FEW_STEPS = 8  # by then an average over steps counts, in RAdam too
NUM_STEPS = 40  # and what an optimizer does but now and then, as estimating curvature
_RATES = re.compile(r"lr|learning_rate")
_NAMES = re.compile(r"momentum|weight_decay|betas|beta\d")
_DECAY = "weight_decay"
_DECAYED, _FAR_DECAYED = 0.1, 1e4  # of a parameter, by a step of the decay that is tried; at a tiny true rate

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
        return f"{self._label}={self.value:g}"

    @property
    def _label(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"

    @property
    def key(self) -> str:
        """What it is known by, whatever a schedule makes of it."""
        return f"{self.kind.__module__}.{self.kind.__qualname__}.{self._label}"

    @property
    def far(self) -> "OptimizerSetting":
        """The same with a number that is as far from it as there is."""
        return replace(self, other=self.other * _FAR_DECAYED / _DECAYED if self.name == _DECAY else 0.0)

    @property
    def place(self) -> Place:
        """Where the optimizer's step is defined."""
        code = getattr(inspect.unwrap(self.kind.step), "__code__", None)
        if code is None:
            return Place()
        return Place(file=code.co_filename, line=code.co_firstlineno, function="step")

    def change(self, optimizer: _Optimizer) -> Callable[[], None]:
        """Put the other number wherever such an optimizer keeps this one; how to put back what was there."""
        undone: list[Callable[[], None]] = []
        kept: tuple[dict[str, Any], ...] = (*optimizer.param_groups, optimizer.defaults, vars(optimizer))
        for each in kept if type(optimizer) is self.kind else ():
            if self.name in each and (new := self._changed(each[self.name])) is not None:
                undone.append(partial(_put_back, each, self.name, each[self.name], new))
                each[self.name] = new

        def undo() -> None:
            for each in undone:
                each()

        return undo

    def _changed(self, given: Any) -> Any:
        """The same with the other number, by as much less as that is; None where there is no such number."""
        if self.index is None:
            return self._number(given) if _is_number(given) and given else None
        if not isinstance(given, (tuple, list)) or len(given) <= self.index or not _is_number(given[self.index]):
            return None
        return type(given)(self._number(each) if at == self.index else each for at, each in enumerate(given))

    def _number(self, given: float) -> float:
        return self.other if self.name == _DECAY else float(given) * self.other / self.value


def _put_back(kept: dict[str, Any], name: str, old: Any, new: Any) -> None:
    """Unless the step has put there something else."""
    if kept.get(name) == new:
        kept[name] = old


def settings_not_followed(subject: Subject, length: int) -> list[OptimizerSetting]:
    """Settings of which another value leaves every parameter as it is after some steps, where the rate is followed."""
    seen: dict[str, OptimizerSetting] = {}

    def note(optimizer: _Optimizer) -> Callable[[], None]:
        for each in _settings(optimizer):
            seen.setdefault(each.key, each)
        return lambda: None

    few = _trained(subject, length, note, _FEW_STEPS)

    def are_same(setting: OptimizerSetting, due: Mapping[str, Tensor], num_steps: int) -> bool:
        with unobserved():  # a number that it refuses is one that it reads
            found = attempt(lambda: _trained(subject, length, setting.change, num_steps))
        return not isinstance(found, Caught) and _are_equal(found, due)

    rates = [each for each in seen.values() if _RATES.fullmatch(each.name)]
    if not rates or any(are_same(each, few, _FEW_STEPS) for each in rates):
        return []
    idle = [each for each in seen.values() if each not in rates and are_same(each, few, _FEW_STEPS)]
    if not idle:
        return []
    many = _trained(subject, length, lambda _: lambda: None, NUM_STEPS)
    return [each.far for each in idle if are_same(each.far, many, NUM_STEPS)]


def _settings(optimizer: _Optimizer) -> Iterator[OptimizerSetting]:
    """Those that are not zero, of groups in which something has a gradient."""
    for group in optimizer.param_groups:
        gradients = [each.grad for each in group["params"] if each.grad is not None]
        if not any(each.is_sparse or bool(each.any()) for each in gradients):
            continue
        named = {name: value for name, value in group.items() if isinstance(name, str)}
        rate = next((float(each) for name, each in named.items() if _RATES.fullmatch(name) and _is_number(each)), 0.0)
        for name, value in named.items():
            if not (_RATES.fullmatch(name) or _NAMES.fullmatch(name)):
                continue
            for index, each in enumerate(value) if isinstance(value, (tuple, list)) else ((None, value),):
                if _is_number(each) and each:
                    other = _DECAYED / rate if name == _DECAY and rate else float(each) / 2
                    yield OptimizerSetting(type(optimizer), name, index, float(each), other)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _trained(
    subject: Subject, length: int, change: Callable[[_Optimizer], Callable[[], None]], num_steps: int
) -> Mapping[str, Tensor]:
    """The parameters after some steps of a loop begun afresh, while each step of an optimizer finds it changed."""
    begun = BegunLoop.of(subject)
    for index in range(num_steps):
        seed = subject.seed + 2 * index
        with _changed_in_steps(change):
            taken = begun.step(begun.batches(length, seed), seed)
    return taken.after


@contextmanager
def _changed_in_steps(change: Callable[[_Optimizer], Callable[[], None]]) -> Iterator[None]:
    undo: dict[int, Callable[[], None]] = {}
    before = register_optimizer_step_pre_hook(lambda optimizer, *_: undo.update({id(optimizer): change(optimizer)}))
    after = register_optimizer_step_post_hook(lambda optimizer, *_: undo.pop(id(optimizer), lambda: None)())
    try:
        yield
    finally:
        before.remove()
        after.remove()


def _are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
