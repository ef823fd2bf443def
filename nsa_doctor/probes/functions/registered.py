"""Operators registered with torch.library that a function calls, and what `torch.library.opcheck` says of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.internal import DispatchWatcher, tree_map
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
        elif ended != _SUCCESS:
            wrong[test] = sentence
    return Registered(name=str(operator), wrong=wrong, missing=missing)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
