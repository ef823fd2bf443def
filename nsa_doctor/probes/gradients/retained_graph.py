"""Which nodes of one call's graph the next call's graph leads to, and which module kept the tensor in between."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.tensor_owners import Holder, holders
from nsa_doctor.probes.hooks.tracer import NodePlaces
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, next_number, number_of, part_at, tree_leaves
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.training import new_optimizer, take_step, weighed
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Subject

Call = Callable[["Graphs"], None]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What was kept: where it is held and was made, the attributes that hold it, how many nodes of it were reached.

    `raised` is what backward of the second call said, or nothing.
    """

    place: Place
    ways: tuple[str, ...]
    num_nodes: int
    raised: str


@dataclass
class Graphs:
    """Takes two calls of a module and compares the graphs behind what they return.

    The nodes of the first are kept here, or the second's could be given their addresses.
    """

    subject: Subject
    module: nn.Module
    _places: Places = field(init=False)
    _made: NodePlaces = field(init=False)
    _stored: dict[tuple[int, str], Place] = field(default_factory=dict)
    _reached: list[Any] = field(default_factory=list)
    _known: set[Any] = field(default_factory=set)
    _harmless: set[Any] = field(default_factory=set)
    _begun: int = 0
    _held: dict[Any, Holder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places, self._made = Places(FrameFilter(self.subject.packages)), NodePlaces()
        self._places.know(self.module)

    def compare(self, calls: Iterable[Call]) -> Kept | None:
        """What the second call found of the first; a call tells `returned` of all it computes.

        Raises SubjectFailedError unless what was raised is that a graph was gone through twice.
        """
        raised = ""
        for number, call in enumerate(calls):
            self._reached = []
            self._remember()
            self._begun = next_number()
            try:
                with self._places.watching(), _Noting(self), self._noting_stores():
                    call(self)
            except SubjectFailedError as failure:
                if not number or error_kind(str(failure)) is not TorchError.GRAPH_FREED or not self._stale():
                    raise
                raised = str(failure)
            if number and (stale := self._stale()):
                return self._kept(stale, raised)
            self._known |= set(self._reached)
        return None

    def returned(self, answer: Any) -> None:
        """Learn of what one call gave back."""
        output, others = split_answer(answer, lambda tensor: tensor.is_floating_point())
        tensors = [leaf for leaf in tree_leaves((output, others)) if isinstance(leaf, Tensor)]
        self._reached += list(_nodes(tensors))

    def operation(self) -> None:
        """Learn where the operation just run stands."""
        self._made.note(self._places)

    def _remember(self) -> None:
        """What hangs on the modules between two calls; a view of a parameter counts as the parameter."""
        memory = {memory_of(parameter) for parameter in self.module.parameters()}
        for holder in holders(self.module):
            if holder.tensor.grad_fn is not None and memory_of(holder.tensor) in memory:
                self._harmless |= set(_nodes([holder.tensor]))
            elif holder.tensor.grad_fn is not None:
                self._held[holder.tensor.grad_fn] = holder
                self._known |= set(_nodes([holder.tensor]))

    def _stale(self) -> list[Any]:
        """Nodes there were before that new ones lead to directly, in the order they were found."""
        if (self._known - self._harmless).isdisjoint(self._reached):
            return []
        new = [node for node in self._reached if not self._is_old(node)]
        over = [following for node in new for following, _ in node.next_functions if self._is_old(following)]
        return list(dict.fromkeys(over))

    def _is_old(self, node: Any) -> bool:
        """Known from before, or made before this call though nothing that was returned led to it."""
        is_fine = node is None or hasattr(node, "variable") or node in self._harmless
        return not is_fine and (node in self._known or number_of(node) < self._begun)

    def _kept(self, stale: list[Any], raised: str) -> Kept:
        first_used = sorted(stale, key=number_of)  # the outermost module's are made last
        found = [self._held[node] for node in first_used if node in self._held]
        made = self._made.of(number_of(first_used[0]))
        place = made[0] if made else definition_place(self.module)
        if found:
            owner = part_at(self.module, found[0].module)
            stored = self._stored.get((id(owner), found[0].attribute))
            place = stored or (made[0] if made and first_used[0] in self._held else definition_place(owner))
            place = replace(place, module=found[0].module, module_class=found[0].module_class)
        elif not place.module_class:
            place = replace(self._places.owner(place), module_class=type(self.module).__name__)
        ways = tuple(dict.fromkeys(f"{item.module}.{item.way}".removeprefix(".") for item in found))
        return Kept(place=place, ways=ways, num_nodes=len(stale), raised=raised)

    @contextmanager
    def _noting_stores(self) -> Iterator[None]:
        """Note the line that gives a module an attribute, for as long as the region lasts."""
        plain = nn.Module.__setattr__

        def noting(module: nn.Module, name: str, value: Any) -> None:
            plain(module, name, value)
            if value is not None:
                self._stored[id(module), name] = self._places.here()[0]

        nn.Module.__setattr__ = noting  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            nn.Module.__setattr__ = plain  # type: ignore[method-assign]


class _Noting(DispatchWatcher):
    """Sees every operation."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self._graphs = graphs

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note where it stands."""
        result = func(*args, **kwargs)
        self._graphs.operation()
        return result


def two_calls(sp: BuiltModule, length: int, then: Mode) -> Iterator[Call]:
    """Forward and backward twice, each from its own input and without gradients of before; then in another mode."""

    def call(graphs: Graphs) -> None:
        subject, module = sp.subject, sp.module
        module.zero_grad(set_to_none=True)
        seed_everything(subject.seed)
        x = sp.input(length)
        with torch.enable_grad():
            given = x.requires_grad_(x.is_floating_point()).clone()
            answer = ask("forward", lambda: subject.forward(module, given), module)
            output, others = ask("forward", lambda: checked_answer(subject, answer, x), module)
            graphs.returned(answer)
            loss = weighed(output, others, subject.seed)
            if loss.requires_grad:
                ask("backward", loss.backward, module, output)

    yield call
    sp.module.train(then == "train")
    yield call


def two_steps(sp: BuiltModule, length: int) -> Iterator[Call]:
    """Two steps of the subject's own training loop."""
    optimizer = new_optimizer(sp.module)

    def step(graphs: Graphs) -> None:
        hook = sp.module.register_forward_hook(lambda _module, _args, answer: graphs.returned(answer))
        try:
            with torch.enable_grad():
                take_step(sp, optimizer, sp.input(length))
        finally:
            hook.remove()

    yield from (step, step)


def _nodes(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Every node behind these tensors, leaves apart."""
    waiting, seen = [tensor.grad_fn for tensor in tensors], set()
    while waiting:
        node = waiting.pop(0)
        if node is not None and node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
