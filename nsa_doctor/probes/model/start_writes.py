"""Who gave each piece of memory its values while a module is built, and who wrote over chosen ones."""

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frame_above
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.tensors.operations import UNWRITTEN, operation_name, overwrites, tensors_in, written_arguments

_OF_TORCH, _LIBRARYS, _OWN = 1, 2, 3  # ranks of code
_COPYING = frozenset({"to_copy", "clone", "detach", "alias"})
_DEFAULTS = frozenset({"__init__", "reset_parameters", "_reset_parameters"})


@dataclass(frozen=True)
class Writer:
    """A line of the subject's own that wrote, and the calls that led to it from outside, as frames and their lines."""

    line: Line
    calls: tuple[tuple[int, Line], ...]
    is_placed: bool  # written into what was there already
    is_librarys: bool  # by what that line called


@dataclass(frozen=True)
class Lost:
    before: Tensor
    given: Writer
    over: Writer


@dataclass
class Memory:
    """Who wrote a piece of memory last, and what was lost there; what torch's own constructors write is nobody's."""

    writer: Writer | None = None
    lost: list[Lost] = field(default_factory=list)


class StartWrites(DispatchWatcher):
    """Follows each piece of memory from the line that chose its values to the line that writes over them."""

    def __init__(self, frames: FrameFilter) -> None:
        super().__init__()
        self.memories: dict[int, Memory] = Memories()
        self.lines: dict[Line, set[int]] = {}
        self._frames = frames
        self._held: list[Any] = []  # so that no memory is given out twice

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it writes."""
        changed = tensors_in(*written_arguments(func, args, kwargs))
        given = {memory_of(each) for each in tensors_in(args, kwargs)}
        writer = self._writer(frame_above(1), is_placed=True) if changed else None
        for each in changed:
            self._write(each, writer, is_whole=overwrites(func) and _fills(each))
        result = func(*args, **kwargs)
        name = operation_name(func)
        for each in tensors_in(result):
            if (memory := memory_of(each)) in given and name != "lift_fresh":  # torch.tensor makes what that takes
                continue
            self._held.append(each)
            source = self.memories[next(iter(given))] if name in _COPYING and len(given) == 1 else None
            self.memories[memory] = Memory(source.writer, list(source.lost)) if source is not None else Memory()
            if source is None and name not in UNWRITTEN:
                self.memories[memory].writer = self._writer(frame_above(1), is_placed=False)
        return result

    def _write(self, tensor: Tensor, writer: Writer | None, *, is_whole: bool) -> None:
        memory = memory_of(tensor)
        held = self.memories[memory]
        self._held.append(tensor)
        if writer is not None:
            self.lines.setdefault(writer.line, set()).add(memory)
        before = held.writer
        if is_whole and writer is not None and before is not None and before.line != writer.line and _builds(writer):
            held.lost.append(Lost(tensor.detach().clone(), before, writer))
        if is_whole or writer is not None:
            held.writer = writer

    def _writer(self, frame: FrameType | None, *, is_placed: bool) -> Writer | None:
        """The line of the subject's own that runs; None where a constructor of torch writes what it always does."""
        calls: list[tuple[int, Line]] = []
        is_librarys = False
        while frame is not None:
            rank = self._frames.rank_of(frame.f_code)
            is_librarys = is_librarys or (not calls and rank == _LIBRARYS)
            if not calls and rank == _OF_TORCH and frame.f_code.co_name in _DEFAULTS:
                return None
            if rank == _OWN:
                line = Line(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_name)
                calls.append((id(frame), line))
            frame = frame.f_back
        return Writer(calls[0][1], tuple(reversed(calls)), is_placed, is_librarys) if calls else None


class Memories(dict[int, Memory]):
    def __missing__(self, memory: int) -> Memory:
        return self.setdefault(memory, Memory())


def _fills(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided and tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    )


def _builds(writer: Writer) -> bool:
    """Whether it runs within a constructor, and is not what a caller does to what is built."""
    return any(line.function == "__init__" for _, line in writer.calls)
