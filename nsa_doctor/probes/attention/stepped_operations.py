"""Which operation of a decoding step gives what no operation of one whole pass gives for the same tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.recording import Call, Operation, Recording, record
from nsa_doctor.probes.model.built_module import BuiltModule

_ROUNDINGS = 1e6  # what is computed of other things differs by more than any order of its sums makes it differ
_MOST_OPERATIONS = 400


@dataclass(frozen=True)
class Taken:
    """Tokens `start` to `end` of `length` that a step takes in."""

    start: int
    end: int
    length: int


def first_unlike(
    sp: BuiltModule, module: nn.Module, whole: Callable[[], Tensor], step: Callable[[], Tensor], part: Taken
) -> Place | None:
    """The line, in a call of that module, from which on the step has results that the whole pass has not.

    What the call gives is followed back, from each operation to those whose results it read and the whole pass lacks.
    """
    expected, found = _recorded(sp, whole), _recorded(sp, step)
    one, other = _call_of(expected, module), _call_of(found, module)
    if one is None or other is None or max(one.end - one.start, other.end - other.start) > _MOST_OPERATIONS:
        return None
    known = expected.operations[one.start : one.end]
    lacks = {index for index in range(other.start, other.end) if _lacks(known, found.operations[index], part)}
    index = max(lacks, default=-1)
    while before := [maker for maker in found.operations[index].makers if maker in lacks and maker < index]:
        index = max(before)
    place = found.operations[index].place
    return place if index >= 0 and place.file else None


def _recorded(sp: BuiltModule, run: Callable[[], Tensor]) -> Recording:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    return record(run, places)


def _call_of(recorded: Recording, module: nn.Module) -> Call | None:
    return next((call for call in recorded.calls if call.module is module), None)


def _lacks(known: Sequence[Operation], operation: Operation, part: Taken) -> bool:
    """Whether none of these gives its results: of those of the same name, where one of them might."""
    for result in operation.results:
        alike = [(each.name, other) for each in known for other in each.results if _fits(result, other, part)]
        same = [other for name, other in alike if name == operation.name] or [other for _, other in alike]
        if any(_holds(other, result, part) for other in same):
            return False
    return bool(operation.results)


def _fits(result: Tensor, other: Tensor, part: Taken) -> bool:
    """Whether the one may be the other for some of the tokens."""
    if result.ndim != other.ndim or result.dtype != other.dtype:
        return False
    sizes = zip(result.shape, other.shape, strict=True)
    return all(size == wanted or (wanted == part.length and size <= part.end) for size, wanted in sizes)


def _holds(other: Tensor, result: Tensor, part: Taken) -> bool:
    """Whether these results are there in the other: at the step's tokens, the first, or the newest ones."""
    if not result.numel() or not _fits(result, other, part):
        return not result.numel()
    size = float(result.abs().max()) if result.is_floating_point() else 0.0
    bound = _ROUNDINGS * torch.finfo(result.dtype).eps * size if result.is_floating_point() else 0.0
    return any(_is_same(result, cut, bound) for cut in _cuts(other, result, part))


def _cuts(other: Tensor, result: Tensor, part: Taken) -> Iterator[Tensor]:
    starts = []
    for size, wanted in zip(result.shape, other.shape, strict=True):
        of_step = [part.start] if size == part.end - part.start else sorted({0, part.end - size})
        starts.append([0] if size == wanted else of_step)
    for chosen in product(*starts):
        cut = other
        for dim, start in enumerate(chosen):
            cut = cut.narrow(dim, start, result.shape[dim])
        yield cut


def _is_same(one: Tensor, other: Tensor, bound: float) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    same = (one == other) | (one.isnan() & other.isnan()) | ((one - other).abs() <= bound)
    return bool(same.all())
