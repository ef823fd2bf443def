"""Finds the line that wrote first into tensors kept for backward, and the line each was saved on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.saved import (
    Saved,
    SavedWatch,
    functions_seen,
    is_plain,
    num_differing,
)
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, number_of, running_node, uncompiled, version_of
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in, written_arguments

OUTSIDE = "code outside torch's operations"


@dataclass(frozen=True)
class Write:
    """What wrote first into a tensor after it was saved."""

    operation: str
    place: Place

    @property
    def is_outside(self) -> bool:
        """Whether no operation of torch did it."""
        return self.operation == OUTSIDE


class WriterWatch(SavedWatch):
    """Looks after every operation, and with `by_line` at every line of the subject, at the tensors of `indices`."""

    def __init__(self, frames: FrameFilter, indices: frozenset[int], by_line: bool = False) -> None:
        super().__init__()
        self.writes: dict[int, Write] = {}
        self._frames, self._indices, self._by_line = frames, indices, by_line
        self._places = Places(frames)
        self._mode = _EveryOperation(self)
        self._waiting: list[Saved] = []
        self._last_writes: dict[int, Write] = {}
        self._line = Place()
        self._ranks: dict[str, int] = {}
        self._is_looking = False

    def know(self, module: nn.Module) -> None:
        """Learn the names of the subject's modules."""
        self._places.know(module)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch saving, every operation and, when asked, every line."""
        tracing = sys.gettrace()
        with super().watching(), self._places.watching(), self._mode:
            if self._by_line:
                sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(tracing)
                self._look_between()

    def note(self, tensor: Tensor, keeper: str = "") -> Saved:
        """Remember a tensor, and where it is saved when it is one of those looked for."""
        with self._looking():
            saved = super().note(tensor, keeper)
        if saved.index in self._indices:
            saved.place = self._places.here()[0]
            self._waiting.append(saved)
        return saved

    def look(self, saved: Saved, operation: str) -> Tensor:
        """Compare at the time of use; what is written after that does no harm."""
        self._look_between()
        with self._looking():
            tensor = super().look(saved, operation)
        self._waiting = [other for other in self._waiting if other is not saved]
        return tensor

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and look before and after it."""
        if self._is_looking or not self._waiting:
            return func(*args, **kwargs)
        self._look_between()
        result = func(*args, **kwargs)
        written = [tensor for tensor in tensors_in(written_arguments(func, args, kwargs)) if is_plain(tensor)]
        write: Write | None = None
        if written:
            write = Write(operation_name(func), self._places.here()[0])
            self._last_writes |= {memory_of(tensor): write for tensor in written}
        for saved in self._changed():
            self._settle(saved, write or Write(operation_name(func), self._places.here()[0]))
        return result

    def _look_between(self) -> None:
        """Before an operation: versions count up after the last one, and other code may have written in between."""
        for saved in self._changed():
            self._settle(saved, Write(OUTSIDE, self._line))
        bumped = [saved for saved in self._waiting if not saved.keeper and version_of(saved.tensor) != saved.version]
        for saved in bumped:
            known = self._last_writes.get(memory_of(saved.tensor))
            self._settle(saved, known or Write(OUTSIDE, self._line))

    def _changed(self) -> list[Saved]:
        with self._looking():
            return [saved for saved in self._waiting if num_differing(saved.tensor, saved.snapshot)]

    def _settle(self, saved: Saved, write: Write) -> None:
        self.writes[saved.index] = write
        self._waiting = [other for other in self._waiting if other is not saved]

    @contextmanager
    def _looking(self) -> Iterator[None]:
        before, self._is_looking = self._is_looking, True
        try:
            yield
        finally:
            self._is_looking = before

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """A line of the subject begins: what has changed by now, the line before it changed."""
        file = frame.f_code.co_filename
        if file not in self._ranks:
            self._ranks[file] = self._frames.rank(file)
        if self._ranks[file] < 2:
            return None
        if self._is_looking:
            return self._trace
        if event in ("line", "return") and self._waiting:
            self._look_between()
        self._line = self._places.here()[0]
        return self._trace


class _EveryOperation(DispatchWatcher):
    """Hands every operation to a watch."""

    def __init__(self, watch: "WriterWatch | GradientWatch") -> None:
        super().__init__()
        self._watch = watch

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation under the eyes of the watch."""
        return self._watch.dispatched(func, args, kwargs)


class GradientWatch:
    """Watches gradients on their way back: who writes into one, and with `are_private` gives each edge its own copy."""

    def __init__(self, frames: FrameFilter, are_private: bool = False) -> None:
        self.writes: list[Write] = []
        self._places = Places(frames)
        self._are_private = are_private
        self._mode = _EveryOperation(self)
        self._gradients: set[int] = set()
        self._applied: dict[int, Place] = {}
        self._kept: list[Tensor] = []  # an address must not be given to other memory

    def know(self, module: nn.Module) -> None:
        """Learn the names of the subject's modules."""
        self._places.know(module)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every operation, and where custom Functions were applied."""
        with uncompiled(), self._places.watching(), functions_seen(self._see_function), self._mode:
            yield

    def follow(self, loss: Tensor) -> None:
        """Look at what every node of the graph hands on."""
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                node.register_hook(self._hand_on)
                waiting += [following for following, _ in node.next_functions]

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note a line of the subject that writes into a gradient."""
        written = [tensor for tensor in tensors_in(written_arguments(func, args, kwargs)) if is_plain(tensor)]
        if written and self._gradients & {memory_of(tensor) for tensor in written}:
            place, is_own = self._places.here()
            if is_own:
                self.writes.append(Write(operation_name(func), self._owned(place)))
        return func(*args, **kwargs)

    def _see_function(self, ctx: Any) -> None:
        self._applied[number_of(ctx)] = self._places.here()[0]

    def _owned(self, place: Place) -> Place:
        """The place with its module: the one whose source it is, or that applied the Function whose backward runs."""
        owned, node = self._places.owner(place), running_node()
        applied = None if node is None else self._applied.get(number_of(node))
        if owned.module_class or applied is None:
            return owned
        return replace(place, module=applied.module, module_class=applied.module_class)

    def _hand_on(self, gradients: Any, _outer: Any) -> Any:
        plain = [gradient for gradient in gradients if is_plain(gradient)]
        if self._are_private:
            with torch.no_grad():
                return tuple(g.clone() if is_plain(g) else g for g in gradients)
        self._kept += plain
        self._gradients |= {memory_of(gradient) for gradient in plain}
        return None
