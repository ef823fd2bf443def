"""The lines on which a pass of equal tokens turns queries and keys of its scores by their positions, or does not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import SOFTMAX, Others, is_over_the_last
from nsa_doctor.probes.hooks.field_writers import FieldWriters, OwnLine
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import memory_of, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments

_PRODUCTS = ("bmm", "mm")
_ANGLES = ("cos", "sin", "polar")
_MOST_BETWEEN = 24  # operations between scores and the product that made them
_ALIKE = 1e4  # in units of the last place


@dataclass(frozen=True)
class _Seen:
    """One operation: the subject's lines under way, who made what it reads, and how its result goes with the token.

    `varies` is None where its result has no dimension of tokens, and `is_fed` where it depends on the input.
    """

    name: str
    lines: tuple[OwnLine, ...]
    place: Place
    makers: tuple[int, ...]
    varies: bool | None
    is_fed: bool


def turning_place(
    sp: BuiltModule,
    x: Tensor,
    index: int,
    others: Others | None = None,
    *,
    is_table: bool = False,
    is_caller: bool = False,
) -> Place | None:
    """Where queries and keys of the softmax of that number come to be turned apart; None where that is not seen.

    x [1, S, ...] holds one token everywhere, and `others` may stand beside them. Of two of which one is turned it is
    the line that makes the other, in the function that turns the first; where one is turned once more, the line that
    does; of two that are turned alike the line that turns them, or hands it other waves for the keys, or, with
    `is_table`, that takes sines, or, with `is_caller`, that has the keys turned and not the queries.
    """
    beside = others or Others()
    found = attempt(lambda: _turning_place(sp, x, index, beside, is_table=is_table, is_caller=is_caller))
    return None if isinstance(found, Caught) else found


def _turning_place(
    sp: BuiltModule, x: Tensor, index: int, others: Others, *, is_table: bool, is_caller: bool
) -> Place | None:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, FrameFilter(sp.subject.packages), x, others)
    with torch.no_grad(), watch.watching():
        sp(x)
    operands = _operands(watch, index)
    if operands is None:
        return None
    queries, keys = (_turns(watch.seen, operand) for operand in operands)
    if not queries and not keys:
        return None
    if not queries or not keys:
        turned = next(iter((*queries, *keys)))
        plain = _projection(watch.seen, operands[0] if not queries else operands[1])
        return None if plain is None else _placed(plain, _line_beside(plain.lines, turned.lines))
    (query, *_), (key, *_) = queries, keys
    if len(queries) != len(keys) and key.lines[0] == query.lines[0]:
        more, other = (queries, key) if len(queries) > len(keys) else (keys, query)
        return _placed(more[-1], _line_beside(more[-1].lines[1:] or more[-1].lines, other.lines[1:]))
    if is_table and (angles := _angles(watch.seen, key)) is not None:
        return _placed(angles, angles.lines[0])
    if is_caller:
        apart = (one for one, other in zip(key.lines, query.lines, strict=False) if one != other)
        return _placed(key, next(apart, key.lines[0]))
    if key.lines[0] != query.lines[0]:
        return _placed(key, _line_beside(key.lines, query.lines))
    is_given = len(key.lines) > 1 and _wave(watch.seen, key) != _wave(watch.seen, query)
    return _placed(key, key.lines[1] if is_given else key.lines[0])


class _Watch(FieldWriters):
    """Notes every operation of a pass."""

    def __init__(self, places: Places, frames: FrameFilter, x: Tensor, others: Others) -> None:
        super().__init__(places, frames)
        self._others = others
        self.seen: list[_Seen] = []
        self.softmaxes: list[int] = []
        self.read: dict[int, tuple[int, ...]] = {}  # of products: who made each of their operands
        self._length, self._fed, self._makers = x.shape[1], {memory_of(x)}, dict[int, int]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; attention that torch fuses is taken apart."""
        with sdpa_kernel(SDPBackend.MATH), super().watching():
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note it."""
        read = tensors_in(args, kwargs)
        by_operand = tuple(self._makers.get(memory_of(each), -1) for each in read)
        result = super().run_operation(func, args, kwargs)
        name, results = operation_name(func), [*tensors_in(result), *tensors_in(written_arguments(func, args, kwargs))]
        is_fed = any(memory_of(each) in self._fed for each in read)
        self._fed.update(memory_of(each) for each in results if is_fed)
        self.alive += results
        number = len(self.seen)
        if name in SOFTMAX and is_over_the_last(result, args):
            self.softmaxes.append(number)
        if name in _PRODUCTS:
            self.read[number] = by_operand
        makers = tuple({each for each in by_operand if each >= 0})
        lines = self.lines_of(frame_above(1))
        place = self.places.of_frame(frame_above(1)) or Place()
        with untraced():
            varies = self._varies(results[0]) if results else None
        self.seen.append(_Seen(name, lines, place, makers, varies, is_fed))
        self._makers.update((memory_of(each), number) for each in results)
        return result

    def _varies(self, tensor: Tensor) -> bool | None:
        """Whether what it holds of one token is other than what it holds of the first."""
        lengths = {self._length: 0, self._length + self._others.count: self._others.before}
        dims = [dim for dim, size in enumerate(tensor.shape) if size in lengths]  # keys may be transposed
        if not dims or not tensor.is_floating_point() or not tensor.numel():
            return None
        before = lengths[tensor.shape[dims[0]]] if self._others.count else 0
        tensor = tensor.narrow(dims[0], before, self._length)
        apart = (tensor - tensor.narrow(dims[0], 0, 1)).abs().max()
        return bool(apart > _ALIKE * torch.finfo(tensor.dtype).eps * tensor.abs().max())


def _operands(watch: _Watch, index: int) -> tuple[int, int] | None:
    """Who made the queries and who the keys of that softmax."""
    if index >= len(watch.softmaxes):
        return None
    waiting, seen = [watch.softmaxes[index]], set[int]()
    while waiting and len(seen) < _MOST_BETWEEN:
        number = max(waiting)
        waiting.remove(number)
        seen.add(number)
        if number in watch.read and len(watch.read[number]) == 2 and min(watch.read[number]) >= 0:
            return watch.read[number][0], watch.read[number][1]
        waiting += [each for each in watch.seen[number].makers if watch.seen[each].is_fed and each not in seen]
    return None


def _turns(seen: Sequence[_Seen], number: int) -> list[_Seen]:
    """The operation through which what was alike for all tokens comes to vary, and others on its line behind it.

    Empty where it does not vary.
    """
    chain: list[_Seen] = []
    while seen[number].varies:
        chain.insert(0, seen[number])
        varying = [each for each in seen[number].makers if seen[each].is_fed and seen[each].varies]
        if not varying:
            break
        number = max(varying)
    turns = [each for each in chain if each.lines]
    return [each for each in turns if each.name == turns[0].name and each.lines[0] == turns[0].lines[0]]


def _projection(seen: Sequence[_Seen], number: int) -> _Seen | None:
    """The product with a weight that made it."""
    while seen[number].name not in ("mm", "addmm", "bmm"):
        makers = [each for each in seen[number].makers if seen[each].is_fed]
        if not makers:
            return None
        number = max(makers)
    return seen[number] if seen[number].lines else None


def _angles(seen: Sequence[_Seen], turn: _Seen) -> _Seen | None:
    """What took the sines by which something is turned."""
    waiting, known = [each for each in turn.makers if not seen[each].is_fed], set[int]()
    while waiting:
        number = max(waiting)
        waiting.remove(number)
        known.add(number)
        if seen[number].name in _ANGLES and seen[number].lines:
            return seen[number]
        waiting += [each for each in seen[number].makers if each not in known]
    return None


def _wave(seen: Sequence[_Seen], turn: _Seen) -> tuple[str, OwnLine] | None:
    """Which of sine and cosine something is turned by there, and where that is taken; None where it is not seen."""
    angles = _angles(seen, turn)
    return None if angles is None else (angles.name, angles.lines[0])


def _line_beside(lines: Sequence[OwnLine], others: Sequence[OwnLine]) -> OwnLine:
    """The innermost of the lines whose function has one of the others too; else the innermost."""
    functions = {(line.file, line.first) for line in others}
    return next((line for line in lines if (line.file, line.first) in functions), lines[0])


def _placed(seen: _Seen, line: OwnLine) -> Place:
    return replace(seen.place, file=line.file, line=line.line, function=line.function)
