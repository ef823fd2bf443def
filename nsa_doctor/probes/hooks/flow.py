"""Follows one forward pass call by call: which tensors of the graph there were, who read them, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import function_of, function_running, is_view, memory_of, version_of
from nsa_doctor.probes.tensors.operations import tensors_in

_LOOKS = frozenset({"size", "dim", "stride", "numel", "is_floating_point", "backward", "register_hook", "__repr__"})


@dataclass(frozen=True)
class Event:
    """One call of a torch function: what memory it read and wrote, and whether a gradient got lost on the way.

    `at` counts the graph's tensors known when it ran; `function` is the autograd function in Python whose call this
    stands for, `inside` the one whose forward it is part of.
    """

    name: str
    place: Place
    at: int
    reads: frozenset[int]
    writes: frozenset[int]
    outputs: tuple[Tensor, ...] = ()
    loses_gradient: bool = False
    writes_hidden: bool = False
    inside: type | None = None
    function: type | None = None
    nodes: tuple[Any, ...] = ()


@dataclass
class Recording:
    """All of a pass: the graph's tensors in the order they came to be known (leaves first), and the calls.

    `hooked` says where the pass put hooks on tensors, by their id.
    """

    tensors: list[Tensor] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    hooked: dict[int, Place] = field(default_factory=dict)

    def readers(self, number: int) -> list[Event]:
        """The calls that read the memory of that tensor, or that autograd knows as its users."""
        tensor = self.tensors[number]
        key, node = memory_of(tensor), _node_of(tensor)
        after = [event for event in self.events if event.at > number]
        calls = [event for event in after if event.function is not None]
        inside = [event for event in after if event.inside is not None and key in event.reads]
        around = [
            next((call for call in calls if call.function is it.inside and call.at >= it.at), None) for it in inside
        ]
        return [
            event
            for event in after
            if key in event.reads or (node is not None and node in event.nodes) or any(event is call for call in around)
        ]

    def hidden_writes(self, number: int, readers: Sequence[Event]) -> list[Event]:
        """Writes that autograd does not see, into memory of the graph that those readers read or wrote."""
        used = {memory_of(self.tensors[number])}.union(*(event.reads | event.writes for event in readers))
        used &= {memory_of(tensor) for tensor in self.tensors}
        return [event for event in self.events if event.at > number and event.writes_hidden and event.writes & used]


class Flow(TorchFunctionMode):
    """Tells `visit` each tensor of the graph when it is first met, leaves first; `record` keeps the calls too.

    Views of a tensor already met are left out: what is done to their memory is done to that tensor. The base class is
    torch's.
    """

    def __init__(
        self, leaves: Sequence[Tensor], visit: Callable[[int, Tensor], None], places: Places | None = None
    ) -> None:
        super().__init__()
        self.recording = Recording()
        self._visit = visit
        self._places = places
        self._seen: set[tuple[int, int]] = set()
        self._memory: set[int] = set()
        self._kept: list[Tensor] = []
        self._functions: dict[int, Any] = {}
        self._insides: dict[type, Place] = {}
        for leaf in leaves:
            self.meet(leaf)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call; meet what goes in and what comes out."""
        kwargs = kwargs or {}
        given = tensors_in(args, kwargs)
        for tensor in given:
            self.meet(tensor)
        version = [version_of(tensor) for tensor in given] if self._places is not None else []
        had = any(tensor.requires_grad for tensor in given)  # detach_ takes it away
        result = func(*args, **kwargs)
        if self._places is not None:
            changed = [tensor for tensor, before in zip(given, version, strict=True) if version_of(tensor) != before]
            self._note(func, given, changed, result, had)
        for tensor in tensors_in(result):
            self.meet(tensor)
        return result

    def meet(self, tensor: Tensor) -> None:
        """Account for a tensor, if it is one of the graph and not a view."""
        if self._places is not None:
            self._kept.append(tensor)  # no other may come to have its address
            self._meet_function(tensor)
        key = (id(tensor), version_of(tensor))
        if key in self._seen or not _is_in_graph(tensor):
            return
        memory = memory_of(tensor)
        if is_view(tensor) and memory in self._memory:
            return
        self._seen.add(key)
        self._memory.add(memory)
        self._kept.append(tensor)
        self.recording.tensors.append(tensor)
        self._visit(len(self.recording.tensors) - 1, tensor)

    def _meet_function(self, tensor: Tensor) -> None:
        """A tensor that a hand-written autograd function made stands for the call of it, which torch hides."""
        node: Any = tensor.grad_fn
        kind = function_of(node)
        if kind is None or id(node) in self._functions or self._places is None:
            return
        self._functions[id(node)] = node
        sources = tuple(source for source, _ in node.next_functions)
        place = self._insides.get(kind) or self._places.here()[0]
        self.recording.events.append(
            Event(
                name=kind.__name__,
                place=place,
                at=len(self.recording.tensors),
                reads=frozenset(),
                writes=frozenset({memory_of(tensor)}),
                outputs=(tensor,),
                function=kind,
                nodes=sources,
            )
        )

    def _note(self, func: Any, given: list[Tensor], changed: list[Tensor], result: Any, had: bool) -> None:
        name = (resolve_name(func) or getattr(func, "__name__", str(func))).removesuffix(".__get__")
        short = name.rpartition(".")[2]
        assert self._places is not None
        if short == "register_hook" and given:
            self.recording.hooked[id(given[0])] = self._places.here()[0]
        if short in _LOOKS or not given:
            return
        outputs = tensors_in(result)
        if not outputs and not changed and short not in _ESCAPES:
            return
        place = self._places.here()[0]
        inside = None if torch.is_grad_enabled() else function_running()
        if inside is not None:
            self._insides[inside] = place
        had = inside is None and had
        floating = [tensor for tensor in (*outputs, *changed) if tensor.is_floating_point()]
        keeps = any(tensor.requires_grad for tensor in floating)
        self.recording.events.append(
            Event(
                name=short,
                place=place,
                at=len(self.recording.tensors),
                reads=frozenset(map(memory_of, given)),
                writes=frozenset(map(memory_of, (*outputs, *changed))),
                outputs=tuple(outputs),
                loses_gradient=had and not keeps and (bool(floating) or short in _ESCAPES),
                writes_hidden=inside is None and bool(changed) and not keeps,
                inside=inside,
            )
        )


def _is_in_graph(tensor: Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_floating_point()
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
        and type(tensor) in (Tensor, torch.nn.Parameter)
    )


def _node_of(tensor: Tensor) -> Any:
    """What autograd knows the tensor by: the node that made it, or the one that accumulates its gradient."""
    if tensor.grad_fn is not None or not tensor.requires_grad:  # detached in place
        return tensor.grad_fn
    return torch.autograd.graph.get_gradient_edge(tensor).node


_ESCAPES = frozenset({"item", "tolist", "numpy", "__float__", "__array__"})
