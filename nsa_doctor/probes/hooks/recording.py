"""Keeps everything one forward pass computed: every operation's results, every module call's inputs and outputs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.written_memory import WrittenMemory
from nsa_doctor.probes.internal import (
    DispatchWatcher,
    is_transformed,
    memory_of,
    tree_leaves,
    tree_map,
    untraced,
    version_of,
)
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments

_MOST_BYTES, _MOST_READ = 1 << 29, 1 << 23
_HOLE = object()


@dataclass(frozen=True)
class Operation:
    """One operation: copies of its results (none once memory is short), and which operations made its inputs.

    `is_written` unless results hold memory into which nothing has been written yet, as of `torch.empty`. `read` has a
    copy of every tensor that it was given, each with the operation that made it; `again` runs it on others in their
    place. `caller` is where a function that is no module's method, and that ran it, was called.
    """

    name: str
    results: tuple[Tensor, ...]
    makers: tuple[int, ...]
    place: Place
    is_written: bool = True
    read: tuple[tuple[int, Tensor], ...] = ()
    again: Callable[[Sequence[Tensor]], tuple[Tensor, ...]] = field(default=tuple, repr=False)
    caller: Place | None = None


@dataclass
class Call:
    """One call of a module, with the range of operations it ran, and those that made its outputs."""

    module: nn.Module | None
    start: int = 0
    inputs: tuple[Tensor, ...] = ()
    end: int = 0
    outputs: tuple[Tensor, ...] = ()
    makers: tuple[int, ...] = ()

    @classmethod
    def whole(cls, recording: "Recording") -> Self:
        """The whole pass, as if it were a call."""
        return cls(None, end=len(recording.operations), makers=(recording.output_maker,))


@dataclass
class Recording:
    """One pass: operations in their order, calls in the order they ended (inner before outer), and the output."""

    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    output_maker: int = -1


def record(run: Callable[[], Tensor], places: Places) -> Recording:
    """Run once, without gradients."""
    recorder = _Recorder(places)
    with torch.no_grad(), places.watching(), recorder, recorder.calls():
        output = run()
    recorder.recording.output = output.detach().clone()
    recorder.recording.output_maker = recorder.maker(output)
    return recorder.recording


class _Recorder(DispatchWatcher):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self.recording = Recording()
        self._places = places
        self._writers: dict[int, int] = {}  # by memory
        self._views: dict[int, int] = {}  # by the tensor's id
        self._held: list[Tensor] = []  # so that no memory is given out twice
        self._memory = WrittenMemory()
        self._copied: dict[tuple[int, int], Tensor] = {}  # by the tensor's id and version
        self._num_bytes = 0
        self._open: list[Call] = []

    def maker(self, tensor: Tensor) -> int:
        """The operation that made this tensor, or the last that wrote into its memory since; -1 when none seen did.

        Another view of that memory made neither.
        """
        return max(self._writers.get(memory_of(tensor), -1), self._views.get(id(tensor), -1))

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Follow every module's forward, until the region ends."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and keep a copy of its results while there is room."""
        given = _tensors_of(args, kwargs)
        made_by = tuple(self.maker(tensor) for tensor in given)
        copies = self._copies(given) if all(tensor.nbytes <= _MOST_READ for tensor in given) else ()
        read = tuple(zip(made_by, copies, strict=False))
        result = func(*args, **kwargs)
        index = len(self.recording.operations)
        results, written = _tensors_of(result), _tensors_of(written_arguments(func, args, kwargs))
        known = {memory_of(tensor) for tensor in given}
        self._views |= {id(tensor): index for tensor in results}
        self._writers |= {memory_of(tensor): index for tensor in results if memory_of(tensor) not in known}
        self._writers |= {memory_of(tensor): index for tensor in written}
        self._held += (*results, *written)
        place, name = self._places.here()[0], operation_name(func)
        self._memory.ran(name, results, written)
        is_written = all(map(self._memory.is_written, results))
        makers, again = tuple(dict.fromkeys(made_by)), _again(func, args, kwargs)
        if written:
            self._copied.clear()  # versions are counted up behind this
        copies = self._copies(results)
        self.recording.operations.append(
            Operation(name, copies, makers, place, is_written, read, again, self._places.calling())
        )
        return result

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._open.append(Call(module, len(self.recording.operations), self._copies(_tensors(args))))

    def _leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        while self._open:
            call = self._open.pop()
            if call.module is module:
                made = _tensors(output)
                call.end, call.outputs = len(self.recording.operations), self._copies(made)
                call.makers = tuple(map(self.maker, made))
                self.recording.calls.append(call)
                return

    def _copies(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Copies; none once there is no room for all of them."""
        copies = [self._copy(tensor) for tensor in tensors]
        kept = tuple(copy for copy in copies if copy is not None)
        return kept if len(kept) == len(copies) else ()

    def _copy(self, tensor: Tensor) -> Tensor | None:
        """A copy, made once for as long as nothing writes into it."""
        key = None if tensor.is_inference() else (id(tensor), version_of(tensor))
        known = None if key is None else self._copied.get(key)
        if known is not None:
            return known
        self._num_bytes += tensor.nbytes
        if self._num_bytes > _MOST_BYTES:
            return None
        with untraced():
            copy = tensor.detach().clone()
        if key is not None:
            self._held.append(tensor)
            self._copied[key] = copy
        return copy


def _again(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
    """The operation with other tensors, in their order."""
    form = _with_holes((args, kwargs))

    def run(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        following = (tensor.clone() for tensor in tensors)
        filled, named = tree_map(lambda leaf: next(following) if leaf is _HOLE else leaf, form)
        with untraced(), torch.no_grad():
            return _tensors(func(*filled, **named))

    return run


def _with_holes(value: Any) -> Any:
    """What an operation is given, in containers of its own, with a hole for each tensor."""
    if isinstance(value, Tensor):
        return _HOLE if _is_followed(value) else value
    if type(value) in (tuple, list):
        return type(value)(map(_with_holes, value))
    return {name: _with_holes(each) for name, each in value.items()} if type(value) is dict else value


def _is_followed(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_transformed(value) and value.layout == torch.strided


def _tensors_of(*values: Any) -> tuple[Tensor, ...]:
    """Those that an operation takes or returns."""
    return tuple(tensor for tensor in tensors_in(*values) if _is_followed(tensor))


def _tensors(value: Any) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(value) if _is_followed(leaf))
