"""Memory that nobody wrote, made visible: NaN in what torch.empty gives, large numbers in an unfilled cache."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nsa_doctor.probes.functions.problems import with_inputs
from nsa_doctor.subject.function import Problem

_LARGE = 1e4


@contextmanager
def poisoned(is_on: bool = True) -> Iterator[None]:
    """torch.empty gives NaN (`torch.utils.deterministic.fill_uninitialized_memory`) until the region ends."""
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
