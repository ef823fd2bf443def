"""The operation at which low precision leaves float64: of those about as far off as the end, the one that adds most."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.numerics.paired_operations import aligned
from nsa_doctor.probes.numerics.rounding_budget import Twins
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.probes.tensors.widened import Widened

_SHARE = 0.25  # of the error at the end, in units of what it is an error of


def straying_operation(pair: Twins, x: Tensor, path: str) -> tuple[str, Place]:
    """Name and place of the operation that the output is made of and that is far further off than what it reads.

    Of the module at `path` and what is in it; no name, and where that module is defined, where none of its lines is.
    """
    whole = "", definition_place(part_at(pair.low.module, path))
    both = attempt(lambda: (_recorded_low(pair, x), _recorded_wide(pair, x)))
    if isinstance(both, Caught):
        return whole
    low, wide = both
    others = {i: wide.operations[j] for i, j in aligned(low.operations, wide.operations)}
    errors = {
        index: _error(own, other)
        for index, other in others.items()
        if (own := low.operations[index]).is_written and other.is_written
    }
    least = min(_relative(low.output, wide.output), 1.0) * _SHARE
    jumps: dict[int, float] = {}
    for index in _ancestors(low, low.output_maker):
        operation = low.operations[index]
        is_inside = not path or f"{operation.place.module}.".startswith(f"{path}.")
        if is_inside and operation.place.file and (error := errors.get(index, 0.0)) >= least:
            before = max((errors.get(maker, 0.0) for maker in operation.makers), default=0.0)
            jumps[index] = error / max(before, torch.finfo(pair.dtype).eps) if before < torch.inf else 0.0
    if not jumps:
        return whole
    index = max(jumps, key=jumps.__getitem__)  # the first of those that are as far
    found = _cast_before(low, index, others) or low.operations[index]
    return found.name, found.place


def _recorded_low(pair: Twins, x: Tensor) -> Recording:
    given = x.to(pair.dtype) if x.is_floating_point() else x
    return recording_of(pair.low, lambda: pair.low(given))


def _recorded_wide(pair: Twins, x: Tensor) -> Recording:
    def run() -> Tensor:
        with Widened():
            return pair.wide(x)

    return recording_of(pair.wide, run)


def _ancestors(run: Recording, last: int) -> list[int]:
    """The operations that an output is made of, in their order."""
    waiting, found = [last], set[int]()
    while waiting:
        index = waiting.pop()
        if index >= 0 and index not in found:
            found.add(index)
            waiting += run.operations[index].makers
    return sorted(found)


def _cast_before(run: Recording, index: int, others: Mapping[int, Operation]) -> Operation | None:
    """A cast of what the operation reads that float64 does without: values are rounded there."""
    makers = (run.operations[maker] for maker in run.operations[index].makers if maker >= 0 and maker not in others)
    return next((each for each in makers if each.name == "to_copy" and each.place.file), None)


def _error(own: Operation, other: Operation) -> float:
    return max(_relatives(own.results, other.results), default=0.0)


def _relatives(own: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> Iterator[float]:
    for one, another in zip(own, expected, strict=False):
        if one.shape == another.shape and one.numel() and another.is_floating_point():
            yield _relative(one, another)


def _relative(own: Tensor, expected: Tensor) -> float:
    """The error in units of the size of what it is an error of; where only one is finite it is infinite."""
    own, expected = own.double(), expected.double()
    finite = isfinite(expected)
    if not bool(finite.any()):
        return 0.0  # nothing says how far it should be
    if not bool(isfinite(own)[finite].all()):
        return float("inf")
    error, size = ((each[finite].square().mean().sqrt()) for each in (own - expected, expected))
    return float(error / size.clamp(min=torch.finfo(torch.float64).tiny))
