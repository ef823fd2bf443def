"""What is wrong with how a table of distances is read, and the line that makes its index so."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.relative_reads import RelativeRead, RelativeReads, is_the_same, relative_reads
from nsa_doctor.probes.attention.relative_structure import (
    first_parting,
    is_along_a_line,
    is_by_place,
    of_sides,
    shared_offsets,
    sides_alike,
)
from nsa_doctor.probes.attention.score_watch import softmaxes
from nsa_doctor.probes.attention.stationary import strays
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import memory_of, part_at, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.subject.contract import Subject

_EXACT = 1e-4  # of the largest score
_LARGEST = 1 << 18
_MOST_SECONDS, _MOST_SECONDS_OF_LINE = 10, 5
_MOST_STEPS = 40_000
_PRODUCTS = frozenset({"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply"})


@dataclass(frozen=True)
class RelativeFault:
    """A table that is read wrongly: how, in words, and the line that makes it so; or one that there is no time for."""

    read: RelativeRead
    text: str
    place: Place
    is_known: bool = True


def relative_faults(subject: Subject, length: int) -> Iterator[RelativeFault]:
    """Of tables whose rows do not follow from the input."""
    sp = built(subject)
    first, again = list(relative_reads(sp, length)), list(_of_another_input(subject, length))
    end = time.monotonic() + _MOST_SECONDS
    for read in first:
        if not any(is_the_same(read, each) for each in again):
            continue
        if time.monotonic() > end:
            yield RelativeFault(read, f"is not looked at: {_MOST_SECONDS} seconds are over", read.place, is_known=False)
            return
        found = _fault(sp, read, length)
        if found is not None:
            text, *is_the_line = found
            place = _line(subject, read, length, *is_the_line)
            owner = part_at(sp.module, read.owner)
            yield RelativeFault(
                read, text, replace(place or read.place, module=read.owner, module_class=type(owner).__name__)
            )


def _of_another_input(subject: Subject, length: int) -> Iterator[RelativeRead]:
    """Of another module: one may keep what it has read."""
    yield from relative_reads(built(replace(subject, seed=subject.seed + 1)), length)


_IsTheLine = Callable[["_Step"], bool]


def _fault(sp: BuiltModule, read: RelativeRead, length: int) -> tuple[str, _IsTheLine, _IsTheLine] | None:
    """What is wrong, in words; which step is to blame, the last one first, or else which, the first one first."""
    rows = read.rows
    if is_by_place(rows):
        if is_along_a_line(rows.flip(0)) and _are_scores_of_distances(sp, length):
            return None  # read in another order, and put right
        if is_along_a_line(rows.flip(1)) and _are_keys_turned(sp, length):
            return None  # the newest key comes first
        own = rows.diagonal()
        apart = int((own != own[len(own) // 2]).nonzero()[0])
        middle = len(own) // 2
        return (
            f"is read by where tokens stand and not by their distance: for a token and itself it is row "
            f"{int(own[apart])} at token {apart}, and row {int(own[middle])} at token {middle}",
            _is_none,
            lambda step: any(map(is_by_place, step.matrices)),
        )
    alike = sides_alike(rows)
    if alike is not None:
        near, apart = alike
        upto = f"distances 1 to {near}" if near > 1 else "distance 1"
        return (
            f"has one row for both sides of a token at {upto}, and a row for each side at distance {apart}",
            _is_none,
            lambda step: any(_parts_sides(each) for each in step.matrices),
        )
    windows = _windows(sp.module, read.owner)
    shared = shared_offsets(rows, read.num_rows, windows)
    if shared is not None:
        one, other = shared
        return (
            f"has a row for each offset in its window, and one and the same is read for {one} and {other} "
            "(rows, columns)",
            lambda step: step.is_product,
            lambda step: any(len(each.unique()) >= len(rows.unique()) for each in step.matrices[:1]),
        )
    return None


def _is_none(_step: "_Step") -> bool:
    return False


def _parts_sides(matrix: Tensor) -> bool:
    alike = of_sides(matrix)
    return alike is not None and first_parting(alike) is not None


def _are_scores_of_distances(sp: BuiltModule, length: int) -> bool:
    """Whether equal tokens are scored by their distance alone, by all softmaxes over tokens, of which there are."""
    x = sp.input(1).repeat_interleave(length, dim=1)
    found = [each.scores for each in softmaxes(sp, x)[0] if each.is_of_tokens(length)]
    return bool(found) and all(strays(each, _EXACT) is None for each in found)


def _are_keys_turned(sp: BuiltModule, length: int) -> bool:
    """Whether the first token is the last key of a softmax over tokens."""
    x = sp.input(length)
    other = x.clone()
    other[:, 0] = x[:, -1] if x.dtype in (torch.int32, torch.int64) else -x[:, 0]
    pairs = zip(softmaxes(sp, x)[0], softmaxes(sp, other)[0], strict=False)
    for one, changed in pairs:
        if one.is_of_tokens(length) and changed.is_of_tokens(length):
            moved = (one.scores - changed.scores).nan_to_num().abs().flatten(0, -3).amax(0)[1:-1]
            if bool((moved[:, -1] > 0).all()) and not bool((moved[:, 0] > 0).any()):
                return True
    return False


def _windows(root: nn.Module, path: str) -> list[tuple[int, int]]:
    """Pairs of sizes, and squares of one, that the module which holds a table has by a name that says so."""
    held = vars(part_at(root, path)).items()
    values = [value for name, value in held if any(word in name for word in ("window", "size", "shape", "resolution"))]
    pairs = [tuple(each) for each in values if isinstance(each, (tuple, list)) and len(each) == 2]
    squares = [(each, each) for each in values if isinstance(each, int)]
    return [(one, other) for one, other in (*pairs, *squares) if isinstance(one, int) and isinstance(other, int)]


@dataclass(frozen=True)
class _Step:
    """One function of torch: where it was called, what it made [N, N] at each of its leading places, of what."""

    place: Place
    matrices: tuple[Tensor, ...]
    made: frozenset[int]
    given: frozenset[int]
    is_product: bool


def _line(subject: Subject, read: RelativeRead, length: int, is_last: _IsTheLine, is_first: _IsTheLine) -> Place | None:
    """The last or the first step on the way to the index that is to blame; None where nothing is seen."""
    places = Places(FrameFilter(subject.packages))
    steps = _Steps(places, len(read.rows))
    with steps, uncompiled(), places.watching():
        sp = built(subject)
        places.know(sp.module)
        watch = RelativeReads(sp.module, places)
        with watch, torch.no_grad():
            sp(sp.input(length))
    again = next((each for each in watch.found if is_the_same(read, each)), None)
    if again is None:
        return None
    wanted, way = {again.memory}, list[_Step]()
    for step in reversed(steps.steps):
        if step.made & wanted:
            wanted |= step.given
            way.append(step)
    way = [step for step in way if step.place.file]
    end = time.monotonic() + _MOST_SECONDS_OF_LINE
    for wants, those in ((is_last, way), (is_first, way[::-1]), (lambda step: bool(step.matrices), way)):
        for step in those:
            if time.monotonic() > end:
                return None
            if wants(step):
                return step.place
    return None


class _Steps(TorchFunctionMode):
    """Notes every function that makes small tensors of numbers which nothing trains; of writes at one line the last.

    What a loop writes into one memory, item by item, is one step.
    """

    def __init__(self, places: Places, size: int) -> None:
        super().__init__()
        self._steps: dict[int, _Step] = {}
        self._places, self._size, self._alive = places, size, list[Tensor]()
        self._count = 0
        self._writes: dict[tuple[frozenset[int], Place], int] = {}

    @property
    def steps(self) -> tuple[_Step, ...]:
        """All of them, the first one first."""
        return tuple(self._steps.values())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        result = func(*args, **(kwargs or {}))
        attempt(lambda: self._note(func, (args, kwargs or {}), result))
        return result

    def _note(self, func: Any, given: Any, result: Any) -> None:
        before = [each for each in tensors_in(*given) if self._is_small(each)]
        name = getattr(func, "__name__", "")
        written = before[:1] if name == "__setitem__" else [each for each in tensors_in(result) if self._is_small(each)]
        if not written or len(self._steps) > _MOST_STEPS:
            return
        self._alive += written
        matrices = tuple(matrix for each in written for matrix in self._matrices(each))
        made, used = (frozenset({memory_of(each) for each in tensors}) for tensors in (written, before))
        step = _Step(self._places.here()[0], matrices, made, used, name in _PRODUCTS)
        if name == "__setitem__":
            former = self._steps.pop(self._writes.get((made, step.place), -1), step)
            step = replace(step, given=step.given | former.given)
            self._writes[made, step.place] = self._count
        self._steps[self._count] = step
        self._count += 1

    def _is_small(self, tensor: Tensor) -> bool:
        return tensor.numel() <= _LARGEST and not tensor.requires_grad and tensor.layout == torch.strided

    def _matrices(self, tensor: Tensor) -> Iterator[Tensor]:
        """What it holds [N, N] in its last two or its first two axes, and as one row of all."""
        size = self._size
        if tensor.ndim == 1 and tensor.numel() == size * size:
            yield tensor.detach().reshape(size, size).clone()
        elif tensor.ndim > 1 and tensor.shape[-2:] == (size, size):
            yield from tensor.detach().reshape(-1, size, size)[:4].clone()
        elif tensor.ndim > 2 and tensor.shape[:2] == (size, size):
            yield from tensor.detach().reshape(size, size, -1).permute(2, 0, 1)[:4].clone()
