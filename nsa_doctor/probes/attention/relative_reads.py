"""Tables named after distances and the rows of them that a pass reads for each query and key."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.relative_structure import FEWEST
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.tensor_owners import attribute_tensors
from nsa_doctor.probes.internal import memory_of, part_at, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule

_NAME = re.compile(
    r"(^|_)rel(ative)?(_|$|pos|emb|bias|att)|relative|(^|_)dist(ance)?_?(emb|bias|table|enc)|(^|_)rp[be](_|$)|t5_bias",
    re.IGNORECASE,
)
_KIND = re.compile(r"Rel(ative)?_?(Pos|Bias|Emb|Att|Key|Dist)|T5\w*Bias|DistanceEmb|DistanceBias")
_OTHER = re.compile(r"relation|related|relu|type|edge|segment|abs|token|mid|len", re.IGNORECASE)
_INDEX = re.compile(r"(?=.*rel)(?=.*(ind|idx))", re.IGNORECASE)
_LARGEST = 1 << 20
_MOST_KEPT = 8  # matrices of one table
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class RelativeRead:
    """A table by its name, with how many rows, which of them are read for each query and key [N, N], and where.

    owner: the path of the module that holds the table; memory: that of the index.
    """

    name: str
    owner: str
    num_rows: int
    rows: Tensor
    place: Place
    memory: int


def relative_reads(sp: BuiltModule, length: int) -> Iterator[RelativeRead]:
    """Those of one pass; those of a pass of another input tell which of them follow from it."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    with RelativeReads(sp.module, places) as watch, torch.no_grad(), uncompiled(), places.watching():
        sp(sp.input(length))
    yield from watch.found


def is_the_same(read: RelativeRead, other: RelativeRead) -> bool:
    """Whether both read the same rows of one table."""
    return read.name == other.name and read.rows.shape == other.rows.shape and torch.equal(read.rows, other.rows)


def relative_tensors(root: nn.Module) -> list[Tensor]:
    """The parameters, buffers and plain tensors of numbers that are named after relative positions."""
    found = {id(tensor): tensor for path, tensor in _held(root) if _is_named(root, path)}
    return [each for each in found.values() if each.is_floating_point()]


def _held(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from root.named_parameters()
    yield from root.named_buffers()
    yield from ((f"{each.module}.{each.way}".removeprefix("."), each.tensor) for each in attribute_tensors(root))


def _is_named(root: nn.Module, path: str) -> bool:
    """Whether a tensor's name, or that of a module of torch's which holds it, or its module's class, says so."""
    owner, _, name = path.rpartition(".")
    part = part_at(root, owner)
    if type(part).__module__.startswith("torch."):
        owner, _, name = owner.rpartition(".")
        part = part_at(root, owner)
    return not _OTHER.search(name) and bool(_NAME.search(name) or _KIND.search(type(part).__name__))


class RelativeReads(TorchFunctionMode):
    """Sees what a table named after distances is indexed with, or what is indexed by an index so named."""

    def __init__(self, root: nn.Module, places: Places) -> None:
        super().__init__()
        self.found: list[RelativeRead] = []
        self._places = places
        self._tables, self._indices = dict[int, tuple[str, str]](), dict[int, tuple[str, str]]()
        self.know(root)

    def know(self, root: nn.Module) -> None:
        """Learn the names of what a module holds."""
        held = [*root.named_parameters(), *root.named_buffers()]
        held += [(f"{each.module}.{each.way}".removeprefix("."), each.tensor) for each in attribute_tensors(root)]
        for path, tensor in held:
            owner, _, name = path.rpartition(".")
            if name == "weight" and isinstance(part_at(root, owner), nn.Embedding):
                owner, _, name = owner.rpartition(".")
            kind = type(part_at(root, owner)).__name__
            if tensor.dtype in _WHOLE:
                if _INDEX.search(name):
                    self._indices[memory_of(tensor)] = path, owner
            elif not _OTHER.search(name) and (_NAME.search(name) or _KIND.search(kind)):
                self._tables[memory_of(tensor)] = path, owner

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        attempt(lambda: self._look(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        if func is embedding and len(given) > 1:
            self._note(given[1], 0, [given[0]])
        elif func in (Tensor.index_select, torch.index_select) and len(given) == 3:
            self._note(given[0], given[1], [given[2]])
        elif func is Tensor.__getitem__:
            self._note(args[0], *_indexed(args[0], args[1]))

    def _note(self, table: Any, axis: int, indices: list[Any]) -> None:
        if not indices or not all(isinstance(each, Tensor) and each.dtype in _WHOLE for each in indices):
            return
        known = self._tables.get(memory_of(table)) or self._indices.get(memory_of(indices[0]))
        rows = _square(indices[0]) if known and indices[0].numel() <= _LARGEST else None
        sizes = table.shape[axis : axis + len(indices)]
        if known is None or rows is None or len(self.found) >= _MOST_KEPT * (1 + len(self._tables)):
            return
        rows = rows % sizes[0]
        for each, size in zip(indices[1:], sizes[1:], strict=True):
            further = _square(each)
            if further is None or further.shape != rows.shape:
                return
            rows = rows * size + further % size
        read = RelativeRead(*known, math.prod(sizes), rows, self._places.here()[0], memory_of(indices[0]))
        if not any(is_the_same(read, each) for each in self.found):
            self.found.append(read)


def _indexed(table: Tensor, index: Any) -> tuple[int, list[Any]]:
    """The axis of a table that tensors index, and these; none where anything but whole axes stands before them."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if parts and parts[0] is Ellipsis:
        axis, parts = table.ndim - len(parts) + 1, parts[1:]
    else:
        axis = next((place for place, part in enumerate(parts) if not isinstance(part, slice)), len(parts))
        whole, parts = parts[:axis], parts[axis:]
        if any(part != slice(None) for part in whole):
            return 0, []
    indices = [part for part in parts if isinstance(part, Tensor)]
    is_plain = all(isinstance(part, Tensor) for part in parts[: len(indices)])
    return axis, indices if is_plain and len(indices) < 3 else []


def _square(index: Tensor) -> Tensor | None:
    """The index as [N, N] of queries and keys, from the fewest on; None where it is not one for all rows and heads."""
    index = index.detach().cpu().long()
    index = index[..., 0] if index.ndim > 2 and index.shape[-1] == 1 else index
    if index.ndim == 1:
        side = math.isqrt(len(index))
        if side * side != len(index) or len(index.unique()) > len(index) // 2:
            return None
        index = index.reshape(side, side)
    if index.ndim < 2 or index.shape[-1] != index.shape[-2] or len(index) == 0:
        return None
    every = index.reshape(-1, *index.shape[-2:])
    return every[0].clone() if every.shape[-1] >= FEWEST and bool((every == every[:1]).all()) else None
