"""Where a module stops depending on its input: the operation that makes one value of whatever it is given."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.numerics.paired_operations import aligned

_NUM_INPUTS = 3


def is_blind(sp: BuiltModule, length: int) -> bool:
    """Whether inputs that have nothing in common give one output, bit by bit."""
    with torch.no_grad():
        outputs = [sp(each).clone() for each in _inputs(sp, length)]
    return all(torch.equal(each, outputs[0]) for each in outputs[1:])


def line_of_loss(sp: BuiltModule, length: int) -> tuple[str, Place]:
    """The last operation towards the output that is given other values and gives the same, and its line."""
    one, other = (recording_of(sp, lambda each=each: sp(each)) for each in _inputs(sp, length)[:2])
    found = _last_that_gives_the_same(one, other)
    if found is None or not found.place.file:
        return "", definition_place(sp.module)
    return found.name, found.place


def _inputs(sp: BuiltModule, length: int) -> list[Tensor]:
    return [sp.input(length, batch=2, seed=sp.subject.seed + 31 * each) for each in range(_NUM_INPUTS)]


def _last_that_gives_the_same(one: Recording, other: Recording) -> Operation | None:
    pairs = {i: other.operations[j] for i, j in aligned(one.operations, other.operations)}
    waiting, seen = [one.output_maker], set[int]()
    while waiting:
        number = max(waiting)
        waiting.remove(number)
        if number < 0 or number in seen or number not in pairs:
            continue
        seen.add(number)
        operation = one.operations[number]
        if not _are_equal(operation.results, pairs[number].results):
            continue
        if not _are_equal([each for _, each in operation.read], [each for _, each in pairs[number].read]):
            return operation
        waiting += operation.makers
    return None


def _are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
