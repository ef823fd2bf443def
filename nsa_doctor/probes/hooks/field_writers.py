"""Which line of the subject computed and which wrote what a tensor of a state holds, and who called it."""

import linecache
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import own_file
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, tree_map
from nsa_doctor.probes.tensors.operations import UNWRITTEN, operation_name, tensors_in, written_arguments

_ALLOCATING = UNWRITTEN | {
    "zeros",
    "zeros_like",
    "new_zeros",
    "full",
    "full_like",
    "new_full",
    "zero_",
    "fill_",
    "ones",
}
MOVING = frozenset(
    (
        *("cat", "stack", "clone", "copy_", "index", "index_select", "gather", "roll", "flip", "repeat", "contiguous"),
        *("index_put", "index_put_", "index_copy", "index_copy_", "scatter", "scatter_", "constant_pad_nd"),
        *("slice_scatter", "select_scatter", "slice_backward", "unsafe_view", "reshape_copy", "to_copy"),
    )
)
_ASKED_BY = own_file("probes", "hooks", "phase.py")  # what lies beyond it called the doctor


@dataclass(frozen=True)
class OwnLine:
    """A line of the subject under way, in a function of those lines; `is_of_module` where a module's method runs.

    `numbers` are the whole numbers among the function's arguments.
    """

    file: str
    line: int
    function: str
    first: int
    last: int
    is_of_module: bool = False
    numbers: tuple[int, ...] = ()

    def assigning(self, name: str) -> "OwnLine | None":
        """The first line of the same function that assigns to an attribute or key of that name."""
        called = rf"(?:\.|\[['\"]){re.escape(name)}(?:['\"]\])?\s*"
        assigns = re.compile(rf"^[^=(#]*{called}(?:[,:][^=(]*)?[-+*/]?=(?!=)")
        lines = range(self.first, self.last + 1)
        found = next((number for number in lines if assigns.search(linecache.getline(self.file, number))), None)
        return None if found is None else replace(self, line=found)


def as_far_as_the_module(lines: Sequence[OwnLine]) -> Sequence[OwnLine]:
    """The lines up to the first of a module's method."""
    index = next((index for index, line in enumerate(lines) if line.is_of_module), len(lines))
    return lines[: index + 1]


@dataclass(frozen=True)
class Write:
    """One operation: its name, its place, and the subject's lines under way, innermost first."""

    operation: str
    place: Place
    lines: tuple[OwnLine, ...]

    @property
    def only_allocates(self) -> bool:
        """Whether it made room and wrote no values."""
        return self.operation in _ALLOCATING


@dataclass
class _Memory:
    """By element of a storage: the operation that computed the value, and the one that put it there."""

    made: Tensor
    written: Tensor


class FieldWriters(DispatchWatcher):
    """Watches a run and then knows who made and who wrote what.

    What is only moved (joined, copied, indexed) is followed to where it was computed.
    """

    def __init__(self, places: Places, frames: FrameFilter) -> None:
        super().__init__()
        self.places, self._frames = places, frames
        self._ranks: dict[CodeType, int] = {}
        self._last_lines: dict[CodeType, int] = {}
        self._memory: dict[int, _Memory] = {}
        self._writes: list[Write] = []
        self.alive: list[Tensor] = []  # or memory would be given to another tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends."""
        with self, self.places.watching():
            yield

    def of(self, tensor: Tensor) -> tuple[Write, Write] | None:
        """The newest operations that computed, and that wrote, elements of it; None where none seen did.

        Memory that was asked for counts where nothing was written into it.
        """
        memory = self._memory.get(memory_of(tensor)) if tensor.numel() and _is_dense(tensor) else None
        if memory is None:
            return None
        made, written = (self._newest(_same_view(part, tensor)) for part in (memory.made, memory.written))
        return (self._writes[made], self._writes[written]) if made >= 0 and written >= 0 else None

    def _newest(self, numbers: Tensor) -> int:
        known = [number for number in numbers.unique().tolist() if number >= 0]
        return max(known, key=lambda number: (self._writes[number].operation not in UNWRITTEN, number), default=-1)

    def unfilled(self, tensor: Tensor) -> Tensor | None:
        """Which elements of it hold what their memory was made with; None where nothing is known of it."""
        memory = self._memory.get(memory_of(tensor)) if tensor.numel() and _is_dense(tensor) else None
        if memory is None:
            return None
        made = _same_view(memory.made, tensor)
        numbers = [number for number in made.unique().tolist() if number >= 0]
        allocating = [number for number in numbers if self._writes[number].only_allocates]
        return torch.isin(made, torch.tensor(allocating, dtype=made.dtype))

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it made or wrote to."""
        result = func(*args, **kwargs)
        written = [tensor for tensor in tensors_in(written_arguments(func, args, kwargs)) if _is_dense(tensor)]
        given = {memory_of(tensor) for tensor in tensors_in(args, kwargs) if _is_dense(tensor)}
        fresh = [tensor for tensor in tensors_in(result) if _is_dense(tensor) and memory_of(tensor) not in given]
        if written or fresh:
            name = operation_name(func)
            self._writes.append(Write(name, self.places.here()[0], self.lines_of(frame_above(2))))
            self.alive += fresh
            moved = self._moved(name, func, args, kwargs, fresh) if name in MOVING and written + fresh else None
            for tensor in (*fresh, *(tensor for tensor in written if moved is None)):
                self._note(tensor, moved)
            for tensor in written if moved is not None else ():
                _same_view(self._of(tensor).written, tensor).fill_(len(self._writes) - 1)
        return result

    def _note(self, tensor: Tensor, moved: Tensor | None) -> None:
        memory, number = self._of(tensor), len(self._writes) - 1
        _same_view(memory.written, tensor).fill_(number)
        made = _same_view(memory.made, tensor)
        if moved is not None and moved.shape == made.shape:
            made.copy_(moved)
        else:
            made.fill_(number)

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any, fresh: Sequence[Tensor]) -> Tensor | None:
        """Who computed each element of the result, found by moving these numbers as the values were."""
        if name == "to_copy":
            return _same_view(self._of(args[0]).made, args[0]).clone() if _is_dense(args[0]) else None
        mapped = tree_map(self._numbers, (args, kwargs))
        result = attempt(lambda: func(*mapped[0], **mapped[1]))
        return None if isinstance(result, Caught) or not isinstance(result, Tensor) else result

    def _numbers(self, leaf: Any) -> Any:
        """For values their numbers; whole numbers are indices and stay."""
        is_values = isinstance(leaf, Tensor) and leaf.is_floating_point() and _is_dense(leaf)
        return _same_view(self._of(leaf).made, leaf) if is_values else leaf

    def _of(self, tensor: Tensor) -> _Memory:
        key = memory_of(tensor)
        total = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        if key not in self._memory or self._memory[key].made.numel() < total:
            self._memory[key] = _Memory(*(torch.full((total,), -1, dtype=torch.int32) for _ in range(2)))
            self.alive.append(tensor)
        return self._memory[key]

    def lines_of(self, frame: FrameType | None) -> tuple[OwnLine, ...]:
        """The subject's lines under way from that frame outwards, as far as a method of a module goes."""
        found: list[OwnLine] = []
        while frame is not None and frame.f_code.co_filename != _ASKED_BY:
            code = frame.f_code
            if code not in self._ranks:
                self._ranks[code] = self._frames.rank_of(code)
            if self._ranks[code] == 3:
                values = frame.f_locals
                is_of_module = code.co_varnames[:1] == ("self",) and isinstance(values.get("self"), nn.Module)
                arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                numbers = tuple(value for name in arguments if type(value := values.get(name)) is int)
                if code not in self._last_lines:
                    self._last_lines[code] = max(line for *_, line in code.co_lines() if line)
                first, last = code.co_firstlineno, self._last_lines[code]
                at = (code.co_filename, frame.f_lineno, code.co_name)
                found.append(OwnLine(*at, first, last, is_of_module, numbers))
            frame = frame.f_back
        outermost = max((index for index, line in enumerate(found) if line.is_of_module), default=len(found) - 1)
        return tuple(found[: outermost + 1])  # beyond it lies the adapter


def _is_dense(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta


def _same_view(elements: Tensor, tensor: Tensor) -> Tensor:
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
