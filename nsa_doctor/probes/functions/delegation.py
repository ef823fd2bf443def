"""Whose kernel serves a function: attention operators of torch that are called from it."""

from typing import Any

from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.subject.function import FunctionSubject, Problem

_NAMES = ("scaled_dot_product", "flash_attention", "efficient_attention", "flex_attention", "cudnn_attention")


class _Watcher(DispatchWatcher):
    """Notes operators of attention; a dispatch mode is a base class by torch's design."""

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, None] = {}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        name = str(func)
        if any(each in name for each in _NAMES):
            self.called[name.partition(".default")[0]] = None
        return func(*args, **kwargs)


def kernels_called(subject: FunctionSubject, problem: Problem) -> tuple[str, ...]:
    """Names of torch's attention operators that one call reaches, forward alone."""
    watcher = _Watcher()
    with watcher:
        ask(subject, problem, Asking(wants=()))
    return tuple(watcher.called)
