"""Who gave each piece of memory its values while a module is built, and who wrote over chosen ones."""

from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frame_above
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.tensors.operations import (
    DRAWING,
    OVERWRITING,
    UNWRITTEN,
    operation_name,
    overwrites,
    tensors_in,
    written_arguments,
)

_OF_TORCH, _LIBRARYS, _OWN = 1, 2, 3  # ranks of code
_COPYING = frozenset({"to_copy", "clone", "detach", "alias"})
_WRITTEN_OVER = OVERWRITING - {"copy_"}  # by what cannot be made of what was there
_DRAWN = DRAWING | {"rand", "randn", "rand_like", "randn_like", "randint", "randperm"}
_USUAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Writer:
    """A line of the subject's own that wrote, and the calls that led to it from outside, as frames and their lines."""

    line: Line
    calls: tuple[tuple[int, Line], ...]
    is_placed: bool  # written into what was there already
    is_librarys: bool  # by what that line called


@dataclass(frozen=True)
class Lost:
    """Values that were the same whatever was drawn, who gave them, and who wrote over them."""

    before: Tensor
    given: Writer
    over: Writer


@dataclass
class Memory:
    """Who wrote a piece of memory last, and what was lost there; what torch's own constructors write is nobody's.

    `made` is the line that asked for the memory, and `is_drawn` says whether chance is in what it holds.
    """

    made: Line | None = None
    writer: Writer | None = None
    is_drawn: bool = False
    lost: list[Lost] = field(default_factory=list)


class StartWrites(DispatchWatcher):
    """Follows each piece of memory from the line that chose its values to the line that writes over them."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self.memories: dict[int, Memory] = _Memories()
        self.lines: dict[Line, set[int]] = {}
        self._frames = frames
        self._held: list[Any] = []  # so that no memory is given out twice

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it writes."""
        name = operation_name(func)
        changed = tensors_in(*written_arguments(func, args, kwargs))
        given = {memory_of(each) for each in tensors_in(args, kwargs)}
        is_drawn = name in _DRAWN or any(self.memories[each].is_drawn for each in given)
        writer = self._writer(frame_above(1), is_placed=True) if changed else None
        for each in changed:
            is_whole = overwrites(func) and _fills(each)
            others = given - {memory_of(each)}
            drawn = name in _DRAWN or any(self.memories[other].is_drawn for other in others)
            is_over = is_whole and name in _WRITTEN_OVER
            self._write(each, writer, is_over=is_over, is_drawn=drawn if is_whole else is_drawn)
        result = func(*args, **kwargs)
        for each in tensors_in(result):
            if (memory := memory_of(each)) in given and name != "lift_fresh":  # torch.tensor makes what that takes
                continue
            self._held.append(each)
            source = self.memories[next(iter(given))] if name in _COPYING and len(given) == 1 else None
            self.memories[memory] = self._new(source, name, is_drawn=is_drawn)
        return result

    def _new(self, source: Memory | None, name: str, *, is_drawn: bool) -> Memory:
        if source is not None:
            return Memory(source.made, source.writer, source.is_drawn, list(source.lost))
        writer = self._writer(frame_above(2), is_placed=False)
        return Memory(None if writer is None else writer.line, None if name in UNWRITTEN else writer, is_drawn)

    def _write(self, tensor: Tensor, writer: Writer | None, *, is_over: bool, is_drawn: bool) -> None:
        memory = memory_of(tensor)
        held = self.memories[memory]
        self._held.append(tensor)
        if writer is not None:
            self.lines.setdefault(writer.line, set()).add(memory)
        before = held.writer
        is_seen = is_over and not held.is_drawn and tensor.dtype in _USUAL
        if is_seen and writer is not None and before is not None and before.line != writer.line and _builds(writer):
            given = replace(before, is_placed=before.is_placed and before.line != held.made)
            held.lost.append(Lost(tensor.detach().clone(), given, writer))
        if is_over or writer is not None:
            held.writer = writer
        held.is_drawn = is_drawn

    def _writer(self, frame: FrameType | None, *, is_placed: bool) -> Writer | None:
        """The line of the subject's own that runs; None where a constructor of torch writes what it always does."""
        calls: list[tuple[int, Line]] = []
        is_librarys = False
        while frame is not None:
            rank = self._frames.rank_of(frame.f_code)
            is_librarys = is_librarys or (not calls and rank == _LIBRARYS)
            if not calls and rank == _OF_TORCH and frame.f_code.co_name == "__init__":
                return None
            if rank == _OWN:
                line = Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)
                calls.append((id(frame), line))
            frame = frame.f_back
        return Writer(calls[0][1], tuple(reversed(calls)), is_placed, is_librarys) if calls else None


class _Memories(dict[int, Memory]):
    def __missing__(self, memory: int) -> Memory:
        return self.setdefault(memory, Memory())


def _fills(tensor: Tensor) -> bool:
    """Whether it is all of the memory that it lies in."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()


def _builds(writer: Writer) -> bool:
    """Whether it runs within a constructor, and is not what a caller does to what is built."""
    return any(line.function == "__init__" for _, line in writer.calls)
