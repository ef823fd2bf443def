"""Watches every operation of one pass and keeps the lineage of what is not finite."""

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.lineage import KINDS, Kind, Lineage, Record, of_kind
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, next_number, number_of, running_node
from nsa_doctor.probes.tensors.finite import holds_extreme, holds_nonfinite, is_countable, isfinite
from nsa_doctor.probes.tensors.operations import (
    UNWRITTEN,
    operation_name,
    overwrites,
    reads_masks,
    tensors_in,
    written_arguments,
)

Cause = tuple[str, str, int, str]


class Tracer(DispatchWatcher):
    """Records where non-finite values come from. Slow: for a second pass, after a first one found some.

    `cured` lists causes whose newborn values are replaced by `cure`, to see what becomes of the rest.
    `poison_unwritten` fills memory that torch.empty left unwritten with NaN.
    A dispatch mode is a base class by torch's design.
    """

    def __init__(
        self, places: Places, cured: frozenset[Cause] = frozenset(), poison_unwritten: bool = False, cure: float = 0.0
    ) -> None:
        super().__init__()
        self.lineage = Lineage()
        self._extremes = Lineage()
        self._places = places
        self._cured = cured
        self._cure = cure
        self._poison_unwritten = poison_unwritten
        self._phase = ""
        self._count = 0
        self._nodes = NodePlaces()
        self._running: int | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Trace the operations of one phase: build, forward or backward; what was compiled runs uncompiled."""
        self._phase = name
        with self, self._places.watching():
            yield

    def know(self, module: nn.Module, x: Tensor) -> None:
        """Learn what parameters, buffers and the input are called, between build and forward."""
        self._places.know(module)
        held = [("parameter", name, value) for name, value in module.named_parameters()]
        held += [("buffer", name, value) for name, value in module.named_buffers()]
        for kind, name, value in held:
            self._name(f"{kind} {name}", value, self._places.of_path(name.rpartition(".")[0], module))
        self._name("the input", x, Place())

    def follow(self, output: Tensor) -> None:
        """Remember which node of the graph runs in backward, should it fail."""
        waiting, seen = [output.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                node.register_prehook(partial(self._run, node))
                waiting += [following for following, _ in node.next_functions]

    @property
    def num_operations(self) -> int:
        """How many operations, parameters and buffers it has looked at."""
        return self._count

    def running(self) -> Place | None:
        """Where in the forward pass the node that ran last in backward was made."""
        found = None if self._running is None else self._nodes.of(self._running)
        return None if found is None else found[0]

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and account for what it wrote."""
        inputs = [tensor for tensor in tensors_in(args, kwargs) if is_countable(tensor)]
        written = [tensor for tensor in tensors_in(written_arguments(func, args, kwargs)) if is_countable(tensor)]
        overwritten = {id(tensor): self._parents([tensor]) for tensor in written}
        result = func(*args, **kwargs)
        self._count += 1
        self._nodes.note(self._places)
        storages = {memory_of(tensor) for tensor in inputs}
        for output in [tensor for tensor in tensors_in(result) if is_countable(tensor)]:
            if not any(output is tensor for tensor in written):
                shares = memory_of(output) in storages
                self._account(func, output, inputs, {}, is_view=shares)
        for tensor in written:
            others = [other for other in inputs if other is not tensor]
            is_read = len(inputs) - len(others) > sum(other is tensor for other in written)  # `f(x, out=x)`
            before = overwritten[id(tensor)] if is_read or not overwrites(func) else {}
            self._account(func, tensor, others, before, is_view=False)
        return result

    def _run(self, node: Any, _gradients: Any) -> None:
        self._running = number_of(node)

    def _account(
        self, func: Any, output: Tensor, inputs: Sequence[Tensor], before: dict[Kind, list[Record]], is_view: bool
    ) -> None:
        name = operation_name(func)
        if name in UNWRITTEN and not is_view:
            self._note_unwritten(name, output)
            return
        constant = name == "lift_fresh"
        if is_view and not constant:
            return
        is_bad, is_extreme = holds_nonfinite(output), holds_extreme(output)
        if not (is_bad or is_extreme) or (constant and self.lineage.has_writer(output)):
            return
        record = self._record("tensor constant" if constant else name)
        record.parents = {} if constant else self._parents(inputs)
        for kind, records in before.items():
            record.parents[kind] = [*record.parents.get(kind, []), *records]
        if is_extreme:
            self._extremes.write(record, output)
        if not is_bad:
            return
        record.masks = reads_masks(name) and not any(
            bool(torch.isposinf(x).any()) for x in inputs if not x.is_complex()
        )
        if record.key in self._cured and any(
            not record.parents.get(kind) and bool(of_kind(output, kind).any()) for kind in KINDS
        ):
            output.copy_(torch.where(isfinite(output), output, self._cure))
            return
        self.lineage.write(record, output)

    def _parents(self, tensors: Sequence[Tensor]) -> dict[Kind, list[Record]]:
        """Per kind, the records behind the non-finite and the extreme values these tensors hold."""
        parents: dict[Kind, list[Record]] = {}
        for tensor in tensors:
            if holds_extreme(tensor):
                sources = self._extremes.sources(tensor, "extreme") or [self._given()]
                parents["extreme"] = [*parents.get("extreme", []), *sources]
            for kind in KINDS if holds_nonfinite(tensor) else ():
                if bool(of_kind(tensor, kind).any()):
                    sources = self.lineage.sources(tensor, kind) or [self._unseen(tensor)]
                    parents[kind] = [*parents.get(kind, []), *sources]
        return parents

    def _note_unwritten(self, name: str, output: Tensor) -> None:
        record = self._record(name)
        record.holder = f"memory that {name} left unwritten"
        if record.key in self._cured:
            output.fill_(self._cure)
        elif self._poison_unwritten:
            output.fill_(float("nan"))
        self.lineage.write(record, output)

    def _unseen(self, tensor: Tensor) -> Record:
        """Values no operation seen wrote: made outside torch's operators, or before the pass."""
        record = self._record("write outside torch")
        record.holder = "memory written outside torch's operations"
        self.lineage.write(record, tensor)
        return record

    def _given(self) -> Record:
        """Extreme values that no operation made: a parameter, a buffer or the input holds them."""
        return replace(self._record("values given"), holder="values given")

    def _name(self, holder: str, tensor: Tensor, place: Place) -> None:
        self._count += 1
        if not is_countable(tensor):
            return
        record = Record(self._count, holder, "build", place, holder=holder, has_own_line=False)
        if record.key in self._cured and holds_nonfinite(tensor):
            data = tensor.detach()
            data.copy_(torch.where(isfinite(data), data, self._cure))
        self.lineage.name(record, tensor)

    def _record(self, operation: str) -> Record:
        place, is_own = self._places.here()
        node = running_node()
        if self._phase == "backward" and node is not None and not (is_own and place.module_class):
            forward, forward_is_own = self._nodes.of(number_of(node)) or (place, is_own)
            operation = f"{operation} in {node.name().rpartition('::')[2]}"
            if is_own:  # a backward written in Python: its own line, in the module that holds it or called it
                place = self._places.owner(place)
                if not place.module_class:
                    place = replace(place, module=forward.module, module_class=forward.module_class)
            else:
                place, is_own = forward, forward_is_own
        return Record(self._count, operation, self._phase, place, has_own_line=is_own)


class NodePlaces:
    """Where in the forward pass each node of the autograd graph was made, by its sequence number."""

    def __init__(self) -> None:
        self._last: list[int] = []
        self._found: list[tuple[Place, bool]] = []

    def note(self, places: Places) -> None:
        """Called after each operation: numbers given since the last call were given here."""
        latest = next_number() - 1
        if latest >= 0 and (not self._last or latest > self._last[-1]):
            here = places.here()
            if here[1] or here[0].module_class:
                self._last.append(latest)
                self._found.append(here)

    def of(self, number: int) -> tuple[Place, bool] | None:
        """The place a node of that number was made at, or None when it was not seen."""
        index = bisect.bisect_left(self._last, number)
        return self._found[index] if index < len(self._found) else None
