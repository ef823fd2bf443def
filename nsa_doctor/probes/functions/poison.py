"""Memory that nobody wrote, made visible: NaN or zeros in what torch.empty gives, large numbers beyond a cache."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nsa_doctor.probes.functions.problems import with_inputs
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.tensors.operations import UNWRITTEN, operation_name, tensors_in
from nsa_doctor.subject.function import Problem

_LARGE = 1e4


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN (`torch.utils.deterministic.fill_uninitialized_memory`) until the region ends."""
    with _filled_by_torch(is_on=True):
        yield


@contextmanager
def zeroed() -> Iterator[None]:
    """torch.empty gives zeros until the region ends: no NaN that an earlier call has left in memory."""
    with _filled_by_torch(is_on=False), _Zeroed():
        yield


class _Zeroed(DispatchWatcher):
    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; zeros where it leaves memory as it was."""
        result = func(*args, **kwargs)
        if operation_name(func) in UNWRITTEN:
            for tensor in tensors_in(result):
                tensor.zero_()
        return result


@contextmanager
def _filled_by_torch(is_on: bool) -> Iterator[None]:
    was_on = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that have no deterministic form
        torch.use_deterministic_algorithms(is_on, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=only_warned)


def beyond_what_is_filled(problem: Problem) -> Problem:
    """Large numbers where a row of the cache holds no key."""
    inputs = {name: problem.inputs[name].clone() for name in ("k", "v")}
    for row, filled in enumerate(problem.shape.filled):
        for value in inputs.values():
            value[row, filled:] = _LARGE
    return with_inputs(problem, **inputs)
