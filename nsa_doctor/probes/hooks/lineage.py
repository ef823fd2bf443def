"""Which operation last wrote the non-finite or extreme values that memory holds, element by element."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.internal import StorageWeakRef, memory_of
from nsa_doctor.probes.tensors.finite import is_extreme, isinf, isnan

Kind = Literal["NaN", "inf", "extreme"]
KINDS: tuple[Kind, ...] = ("NaN", "inf")


@dataclass(eq=False)
class Record:
    """One operation with a non-finite result, or something that held such values before any operation did.

    `parents` holds, per kind, the records of the inputs that held that kind; none means that the kind was born here.
    Extreme values are finite ones near an end of their dtype's range.
    `holder` names a parameter, buffer or input that the values passed through. `masks` says that the infinities among
    the inputs are -inf and that the operation is one that reads -inf as "nothing here".
    """

    index: int
    operation: str
    phase: str
    place: Place
    parents: dict[Kind, list["Record"]] = field(default_factory=dict)
    holder: str = ""
    has_own_line: bool = True
    masks: bool = False

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes two records the same cause: the same operation on the same line, or the same holder."""
        if self.has_own_line and self.place.file:
            return self.operation, self.place.file, self.place.line, self.phase
        return self.operation, self.place.module + self.holder, 0, self.phase


class Lineage:
    """For each piece of memory: who wrote such values into it, newest last, and what it is called."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}
        self._purge_at = 1024

    def write(self, record: Record, tensor: Tensor) -> None:
        """Note that `record` wrote values of the kinds looked for into the memory `tensor` covers."""
        memory = self._of(tensor)
        region = _Region.of(tensor)
        if region.covers(tensor):
            memory.writers.clear()
        memory.writers.append((record, region))

    def name(self, record: Record, tensor: Tensor) -> None:
        """Give the memory of a parameter, buffer or input its name."""
        self._of(tensor).holder = record

    def has_writer(self, tensor: Tensor) -> bool:
        """Whether anything noted has written here."""
        memory = self._memory.get(memory_of(tensor))
        return memory is not None and bool(memory.writers or memory.holder)

    def sources(self, tensor: Tensor, kind: Kind) -> list[Record]:
        """The records that last wrote the values of that kind in `tensor`; none when no operation seen wrote them."""
        memory = self._memory.get(memory_of(tensor))
        if memory is None:
            return []
        writers = memory.last_writers(tensor, kind)
        if memory.holder is None:
            return writers
        held = memory.holder
        older = [writer for writer in writers if writer.index < held.index]
        newer = [writer for writer in writers if writer.index > held.index]
        if writers and not older:
            return newer
        return [*newer, replace(held, parents={kind: older})]

    def _of(self, tensor: Tensor) -> "_Memory":
        key = memory_of(tensor)
        memory = self._memory.get(key)
        if memory is None:
            if len(self._memory) >= self._purge_at:
                self._purge()
            # A weak reference keeps the address from being given to other memory.
            memory = self._memory[key] = _Memory(StorageWeakRef(tensor.untyped_storage()))
        return memory

    def _purge(self) -> None:
        self._memory = {key: memory for key, memory in self._memory.items() if not memory.reference.expired()}
        self._purge_at = max(1024, 2 * len(self._memory))


@dataclass(frozen=True)
class _Region:
    """Elements of a piece of memory, as a strided view; repeated ones (stride 0) once."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: Tensor) -> "_Region":
        dims = [
            (1, 1) if stride == 0 else (int(size), int(stride))
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        return cls(int(tensor.storage_offset()), tuple(d[0] for d in dims), tuple(d[1] for d in dims), tensor.itemsize)

    def covers(self, tensor: Tensor) -> bool:
        """Whether these are all elements of the memory behind `tensor`."""
        num_elements = 1
        for size in self.size:
            num_elements *= size
        return num_elements * self.itemsize == tensor.untyped_storage().nbytes()

    def marks(self, marks: Tensor) -> Tensor:
        return marks.as_strided(self.size, self.stride, self.offset)


@dataclass(eq=False)
class _Memory:
    reference: StorageWeakRef
    writers: list[tuple[Record, _Region]] = field(default_factory=list)
    holder: Record | None = None

    def last_writers(self, tensor: Tensor, kind: Kind) -> list[Record]:
        if len(self.writers) == 1:
            return [self.writers[0][0]]
        return list(self._walk(tensor, kind))

    def _walk(self, tensor: Tensor, kind: Kind) -> Iterator[Record]:
        itemsize = tensor.itemsize
        marks = torch.zeros(tensor.untyped_storage().nbytes() // itemsize, dtype=torch.bool, device=tensor.device)
        region = _Region.of(tensor)
        seen = tensor.detach()
        for dim, size in enumerate(region.size):
            seen = seen.narrow(dim, 0, size)
        region.marks(marks).copy_(of_kind(seen, kind))
        for record, written in reversed(self.writers):
            if written.itemsize != itemsize:  # read as another type: take every writer
                yield record
                continue
            part = written.marks(marks)
            if bool(part.any()):
                yield record
                part.zero_()
            if not bool(marks.any()):
                return


def of_kind(values: Tensor, kind: Kind) -> Tensor:
    """Where a tensor holds NaN, or infinity, or finite values near an end of its dtype's range."""
    values = values.float() if values.itemsize < 2 else values
    if kind == "extreme":
        return is_extreme(values)
    return isnan(values) if kind == "NaN" else isinf(values)
