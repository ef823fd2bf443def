"""Operators registered with torch.library that a function calls, and what `torch.library.opcheck` says of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.functions.poison import poisoned
from nsa_doctor.probes.internal import DispatchWatcher, tree_map
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.subject.function import FunctionSubject, Problem

_TORCHS = (
    "aten",
    "prim",
    "prims",
    "higher_order",
    "quantized",
    "inductor",
    "c10d",
    "profiler",
    "debugprims",
    "rngprims",
)
_MISSING = ("no fake impl registered", "no autograd formula", "UnsupportedOperatorException", "not currently supported")
_SUCCESS = "SUCCESS"
_OF_VALUES = "test_aot_dispatch_dynamic"  # compares what two calls return, element by element
_MOST_OPERATORS = 4


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What is wrong with an operator's registration, and what is merely missing, by opcheck's name of the test."""

    name: str
    wrong: Mapping[str, str]
    missing: Mapping[str, str]


class _Watcher(DispatchWatcher):
    """Keeps the arguments with which each operator of a user's is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        if getattr(func, "namespace", _TORCHS[0]) not in _TORCHS and func not in self.called:
            self.called[func] = tree_map(_copy, (args, kwargs))
        return func(*args, **kwargs)


def registered(subject: FunctionSubject, problem: Problem) -> list[Registered]:
    """The operators that one call reaches, forward and backward, each checked with the arguments of the call."""
    watcher = _Watcher()
    with watcher:
        ask(subject, problem, Asking())
    return [_checked(operator, *given) for operator, given in list(watcher.called.items())[:_MOST_OPERATORS]]


def _checked(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Registered:
    said = attempt(lambda: torch.library.opcheck(operator, args, kwargs, raise_exception=False))
    if isinstance(said, Caught):
        return Registered(name=str(operator), wrong={}, missing={"opcheck": said.sentence})
    wrong, missing = {}, {}
    for test, ended in said.items():
        sentence = " ".join(str(ended).split())
        if any(each in f"{type(ended).__name__} {sentence}" for each in _MISSING):
            missing[test] = sentence
        elif ended != _SUCCESS and test == _OF_VALUES and _leaves_unwritten(operator, args, kwargs):
            missing[test] = f"it returns memory that it has not written: {sentence}"
        elif ended != _SUCCESS:
            wrong[test] = sentence
    return Registered(name=str(operator), wrong=wrong, missing=missing)


def _leaves_unwritten(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it returns elements of what memory held before, of which no two calls agree."""

    def call() -> list[Tensor]:
        return tensors_in(operator(*tree_map(_copy, args), **tree_map(_copy, kwargs)))

    plain = attempt(call)
    with poisoned():
        filled = attempt(call)
    if isinstance(plain, Caught) or isinstance(filled, Caught):
        return False
    return any(bool((_is_filling(each) & (each != other)).any()) for each, other in zip(filled, plain, strict=True))


def _is_filling(tensor: Tensor) -> Tensor:
    """Where it holds what torch fills memory with that is not written, by dtype."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.isnan()
    return tensor == (True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
