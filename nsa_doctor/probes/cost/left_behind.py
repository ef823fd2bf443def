"""What a call leaves in the attributes of a module, beside what the call itself needs at its peak."""

from collections import Counter
from dataclasses import dataclass

import torch

from nsa_doctor.core.growth import least_exponent
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.cost.alive import Holdings, peak_memory
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.tensor_owners import Holder, tensors_held
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_SQUARE, _BELOW = 1.75, 1.5
Attribute = tuple[str, str]  # the module's path, and the attribute's name


@dataclass(frozen=True, kw_only=True)
class Left:
    """Bytes that depend on the input and are held after a call without gradients, and those of the peak without them.

    Both at one length.
    """

    length: int
    held: dict[Attribute, int]
    needed: int
    num_operations: int


def left_behind(subject: Subject, length: int) -> Left:
    """Call a module that is built afresh twice, with other input, and compare what its attributes hold."""
    sp = built(subject)
    before = {memory_of(each.tensor) for each in tensors_held(sp.module)}
    first, second = (_held_after(sp, length, seed, before) for seed in (subject.seed, subject.seed + 1))
    held: Counter[Attribute] = Counter()
    for way, (holder, value) in first.items():
        other = second.get(way)
        if other is None or value.shape != other[1].shape or not torch.equal(value, other[1]):
            held[holder.module, holder.attribute] += holder.tensor.untyped_storage().nbytes()
    peak = peak_memory(subject, length, "no_grad" if "no_grad" in subject.modes else "eval")
    needed = max(0, peak.bytes - held.total())
    return Left(length=length, held=dict(held), needed=needed, num_operations=peak.num_operations)


def where_left(sp: BuiltModule, length: int) -> Place:
    """The line that allocated most of what a call without gradients leaves behind."""
    watcher, x = Holdings(sp.subject.packages), sp.input(length)
    watcher.know(sp.module, x)
    with torch.no_grad(), watcher.phase("forward"):
        sp(x)
    return max(watcher.by_place, key=lambda place: watcher.by_place[place], default=definition_place(sp.module))


def square_left_behind(calls: list[Left]) -> tuple[Attribute, float, float] | None:
    """The attribute that holds more with the square of the length, where a call needs less; with both exponents."""
    lengths, last = [each.length for each in calls], calls[-1]
    needed = least_exponent(lengths, [each.needed for each in calls])
    held = {name: least_exponent(lengths, [each.held.get(name, 0) for each in calls]) for name in last.held}
    square = [name for name, exponent in held.items() if exponent > _SQUARE]
    if not square or needed > _BELOW:
        return None
    worst = max(square, key=lambda name: last.held[name])
    return worst, held[worst], needed


def _held_after(
    sp: BuiltModule, length: int, seed: int, before: set[int]
) -> dict[tuple[str, str], tuple[Holder, torch.Tensor]]:
    """By module and way: who holds a tensor that was not there, and a copy of it."""
    with torch.no_grad():
        sp(sp.input(length, seed=seed))
    found = [each for each in tensors_held(sp.module) if memory_of(each.tensor) not in before]
    return {(each.module, each.way): (each, each.tensor.detach().clone()) for each in found}
