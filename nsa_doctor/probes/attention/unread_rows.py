"""Rows of tables of parameters that are read by where tokens stand, and that no length reads."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST_ROWS, _FEWEST_READ = 8, 2
_SHARE = 16  # one row in so many may go unread between others, as one that stands for no distance does
_PAIRS = (Tensor.__getitem__, Tensor.index_select, torch.index_select)


@dataclass
class Reading:
    """A table [R, ...] by its parameter's name, the rows that were read, and by pairs of tokens if `is_of_pairs`."""

    name: str
    num_rows: int
    place: Place
    rows: set[int] = field(default_factory=set)
    num_reads: int = 0
    is_of_pairs: bool = False


@dataclass(frozen=True)
class Unread:
    """How many rows of a table are never read, in words which, and where it is."""

    name: str
    num_unread: int
    num_rows: int
    words: str
    place: Place


def unread_rows(sp: BuiltModule, shorter: int, longer: int) -> Iterator[Unread]:
    """Tables that the two lengths read alike, whatever the input is, and some of whose rows they leave out.

    That is where rows on both sides of them are read, or, in a table of pairs of tokens that all read each other, where
    all on one side are left out and none on the other.
    """
    first, again = (_readings(sp, longer, seed) for seed in (0, 1))
    before = _readings(sp, shorter, 0)
    for name, reading in first.items():
        alike = all(name in each and each[name].rows == reading.rows for each in (again, before))
        if not alike or reading.num_rows < _FEWEST_ROWS or len(reading.rows) < _FEWEST_READ:
            continue
        if reading.num_reads <= before[name].num_reads or _is_of_planes(reading.num_rows):
            continue  # not by where tokens stand, or by two directions, of which a window may use a part
        unread = set(range(reading.num_rows)) - reading.rows
        low, high = min(reading.rows), max(reading.rows)
        between = _between(reading.rows, reading.num_rows)
        ends = low, reading.num_rows - 1 - high
        if between > max(1, reading.num_rows // _SHARE):
            words = f"{between} of them between rows that are"
        elif reading.is_of_pairs and max(ends) >= reading.num_rows // 4 and min(ends) == 0 and _is_bidirectional(sp):
            words = "all on one side, and none on the other: what is before and what is behind share the rest"
        else:
            continue
        yield Unread(name, len(unread), reading.num_rows, words, reading.place)


def _is_of_planes(num_rows: int) -> bool:
    """Whether it has a row for each pair of distances, as (2 n - 1) ** 2 are."""
    side = math.isqrt(num_rows)
    return side * side == num_rows and side % 2 == 1


def _between(read: set[int], num_rows: int) -> int:
    """How many rows lie unread between others, in each half by itself: one may hold what is before, one what is behind.

    Each then ends with what is far, which no length that was tried may reach.
    """
    halves = ({row for row in read if row < num_rows // 2}, {row for row in read if row >= num_rows // 2})
    return sum(max(half) - min(half) + 1 - len(half) for half in halves if half)


def _readings(sp: BuiltModule, length: int, seed: int) -> Mapping[str, Reading]:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Reads({id(each): (name, each) for name, each in sp.module.named_parameters()}, places)
    x = sp.input(length, seed=sp.subject.seed + seed)
    with torch.no_grad(), uncompiled(), places.watching(), watch:
        sp(x)
    return watch.found


def _is_bidirectional(sp: BuiltModule) -> bool:
    """Whether the last token changes the output of the first ones."""
    x, other = sp.input(_FEWEST_ROWS), sp.input(_FEWEST_ROWS, seed=sp.subject.seed + 1)
    other[:, :-1] = x[:, :-1]
    with torch.no_grad():
        return not torch.equal(sp(x)[:, :2], sp(other)[:, :2])


class _Reads(TorchFunctionMode):
    """Sees which rows of a parameter are taken by a tensor of whole numbers."""

    def __init__(self, parameters: Mapping[int, tuple[str, Tensor]], places: Places) -> None:
        super().__init__()
        self.found: dict[str, Reading] = {}
        self._parameters, self._places = parameters, places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        given = [*args, *(kwargs or {}).values()]
        if func is embedding and len(given) > 1:
            attempt(lambda: self._look(given[1], given[0]))
        elif func in _PAIRS and len(given) > 1:
            attempt(lambda: self._look(given[0], given[-1]))
        return func(*args, **(kwargs or {}))

    def _look(self, table: Any, index: Any) -> None:
        name, _ = self._parameters.get(id(table), ("", None))
        index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if not name or not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            return
        reading = self.found.setdefault(name, Reading(name, len(table), self._places.here()[0]))
        reading.num_reads += index.numel()
        reading.rows |= {int(each) % len(table) for each in index.unique()}
        rows = index.reshape(-1, index.shape[-1]) if index.ndim > 1 else index[None]
        reading.is_of_pairs |= len(rows) > 1 and not bool((rows == rows[:1]).all())
