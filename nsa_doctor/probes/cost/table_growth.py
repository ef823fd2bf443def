"""Tables that are the same whatever the input is, as masks are, beside the work that is done on the input."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.growth import least_exponent
from nsa_doctor.core.measurement import Place, Point
from nsa_doctor.probes.cost.alive import Holdings
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.internal import flops_of, memory_of
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.tensors.operands import tensors_in
from nsa_doctor.probes.tensors.operations import operation_name, written_arguments
from nsa_doctor.subject.contract import Subject

_SQUARE, _BELOW = 1.75, 1.4
_LEAST_SHARE = 0.01  # of all work
_LEAST_SHARE_OF_MEMORY = 0.02
_LEAST_LENGTH = 256  # or what grows with the square is little yet


Work = tuple[Place, str]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """One pass without gradients: bytes of tables that each line held at most at once, and work on the input.

    Work, by line and operation, is how many values are read and made, and floating-point operations.
    """

    length: int
    bytes: dict[Place, int]
    work: dict[Work, int]
    peak_bytes: int
    num_operations: int


@dataclass(frozen=True)
class Oversized:
    """A line whose table grows with the square of the length, and the largest exponent of any work on the input."""

    place: Place
    exponent: float
    work_exponent: float


def tables(subject: Subject, length: int) -> Tables:
    """Run the subject once, without gradients."""
    watcher = _Tables(subject.packages)
    point = Point(length=length, dtype=subject.dtype, mode="no_grad" if "no_grad" in subject.modes else "eval")
    perform(subject, point, Conditions(seed=subject.seed, device=subject.device, measures_memory=False), watcher)
    working = {place for place, _ in watcher.work}
    return Tables(
        length=length,
        bytes={place: size for place, size in watcher.most_by_place.items() if place not in working},
        work=dict(watcher.work),
        peak_bytes=watcher.peak_bytes,
        num_operations=watcher.num_operations,
    )


def oversized(passes: list[Tables], reach: int) -> Oversized | None:
    """The largest table that grows with the square where no work does.

    None where there is none, where some work does, and where at `reach` tokens it is little beside the rest.
    """
    lengths, last = [each.length for each in passes], passes[-1]
    whole = sum(last.work.values())
    telling = [key for key, work in last.work.items() if work > _LEAST_SHARE * whole]
    works = [least_exponent(lengths, [each.work.get(key, 0) for each in passes]) for key in telling]
    grown = {place: least_exponent(lengths, [each.bytes.get(place, 0) for each in passes]) for place in last.bytes}
    square = [place for place, value in grown.items() if value > _SQUARE]
    if last.length < _LEAST_LENGTH or not square or not works or max(works) > _BELOW:
        return None
    place = max(square, key=lambda each: last.bytes[each])
    times = max(1.0, reach / last.length)
    if last.bytes[place] * times**2 < _LEAST_SHARE_OF_MEMORY * (last.bytes[place] * times**2 + last.peak_bytes * times):
        return None
    return Oversized(place, grown[place], max(works))


class _Tables(Holdings):
    def __init__(self, packages: tuple[str, ...]) -> None:
        super().__init__(packages)
        self.work: Counter[Work] = Counter()
        self._fixed = set[int]()  # parameters, buffers, and what was made of no input

    def know(self, module: nn.Module, x: Tensor) -> None:
        """Learn the modules' names and their own tensors."""
        super().know(module, x)
        own = (*module.parameters(), *(each.tensor for each in tensors_held(module)))
        self._fixed = {memory_of(each) for each in own}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and account for it as work on the input, or as one that makes a table."""
        read = tensors_in(args, kwargs)
        given = {memory_of(each) for each in read}
        is_fed = not given <= self._fixed
        result = super().run_operation(func, args, kwargs)
        made = [each for each in tensors_in(result) if memory_of(each) not in given]
        written = tensors_in(written_arguments(func, args, kwargs))
        if is_fed and (made or written):
            name, values = operation_name(func), sum(each.numel() for each in (*read, *made))
            products = flops_of(func, args, kwargs, result) or (_products_of(read) if "attention" in name else 0)
            self.work[self._place(), name] += values + products
            self._fixed.difference_update(memory_of(each) for each in (*made, *written))
        elif not is_fed:
            self._fixed.update(memory_of(each) for each in (*made, *written))
        return result


def _products_of(read: Sequence[Tensor]) -> int:
    """Of attention that torch counts no operations of: every query of the first with every key of the second."""
    if len(read) < 2 or min(read[0].ndim, read[1].ndim) < 3:
        return 0
    return read[0].numel() * read[1].shape[-2]
