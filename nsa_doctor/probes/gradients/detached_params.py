"""Follows parameters through one forward pass: where each is used, and where the way to the output is cut."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.deliveries import Deliveries
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.saved import functions_seen
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.tensors.operations import tensors_in

_NEW_VALUES = ("zeros", "ones", "empty", "rand", "randn", "randint", "full", "new_", "arange", "bernoulli")
_CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "mul", "__mul__", "__rmul__")
_BY_EXAMPLE = ("to", "type_as", "expand_as", "view_as", "reshape_as")  # of the first; the second is a pattern
_TO_PYTHON = ("item", "tolist", "numpy", "__float__", "__array__")


@dataclass(frozen=True)
class Cut:
    """A call that takes in something with a gradient to come and gives out values without one.

    `is_decision` says that the values are a comparison's outcome made a number.
    """

    operation: str
    place: Place
    is_decision: bool = False


@dataclass(frozen=True)
class _Followed:
    """A tensor, the numbers of the cuts on its way, and of those after which it stayed a number."""

    tensor: Tensor
    cuts: frozenset[int] = frozenset()
    smooth_cuts: frozenset[int] = frozenset()


class PathWatch:
    """Watches the calls of torch's functions in a pass, above autograd; a function mode is torch's way to do so."""

    def __init__(self, frames: FrameFilter, followed: Iterable[Tensor] = ()) -> None:
        self.cuts: list[Cut] = []
        self.uses: dict[int, Place] = {}
        self._made: dict[int, Tensor] = {}
        self.nodes: dict[Any, Place] = {}
        self.deliveries: Deliveries | None = None
        self._places = Places(frames)
        self._mode = _EveryFunction(self)
        self._is_inside = False
        self._followed = {id(tensor): _Followed(tensor) for tensor in followed}
        self._unread: dict[int, Place] = {}

    def know(self, module: nn.Module) -> None:
        """Learn the names of the subject's modules."""
        self._places.know(module)

    def follow(self, loss: Tensor) -> None:
        """Watch what backward delivers."""
        self.deliveries = Deliveries(loss)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch every call, and the custom Functions applied."""
        with uncompiled(), self._places.watching(), functions_seen(self._see_function, self._apply), self._mode:
            yield

    def cuts_before(self, outputs: Iterable[Tensor]) -> list[Cut]:
        """The cuts that what flows into these tensors has gone through, in their order.

        Those alone after which it went on as numbers, where there are such: an index or a mask has no slope to lose.
        """
        arrived = [self._followed[id(tensor)] for tensor in outputs if id(tensor) in self._followed]
        smooth = frozenset[int]().union(*(each.smooth_cuts for each in arrived))
        found = smooth or frozenset[int]().union(*(each.cuts for each in arrived))
        return [self.cuts[index] for index in sorted(found)]

    def reaches(self, tensors: Iterable[Tensor]) -> bool:
        """Whether anything computed from what is followed flows into one of these, through indices and masks too."""
        return any(id(tensor) in self._followed for tensor in tensors)

    @property
    def last_unread(self) -> Place:
        """Where the last value was made that comes of what is followed and that nothing was computed from.

        Empty where nothing comes of it: asking for its dtype or its size makes no value.
        """
        return next(reversed(self._unread.values()), Place())

    def place_of(self, tensor: Tensor) -> Place:
        """Where a tensor that was there before the pass, or a leaf, was used first."""
        return self.uses.get(id(tensor), Place())

    def birth_of_zeros(self, leaf: Tensor) -> Place:
        """Where the operation stands that was given a gradient and handed on zeros towards this leaf."""
        node = None if self.deliveries is None else self.deliveries.birth_of_zeros(leaf)
        return self.nodes.get(node, Place())

    def is_softmax_of_one(self, leaf: Tensor) -> bool:
        """Whether what hands this leaf its zeros is a softmax over one element."""
        deliveries = self.deliveries
        return deliveries is not None and deliveries.is_softmax_of_one(deliveries.birth_of_zeros(leaf))

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one function and account for what flows through it."""
        result = func(*args, **kwargs)
        name = _name(func)
        if not self._is_inside and name not in ("requires_grad", "grad_fn", "is_leaf", "shape", "dtype", "device"):
            self._note(name, (args, dict(kwargs)), result)
        return result

    def _note(self, name: str, arguments: Any, result: Any) -> None:
        given = tensors_in(arguments)
        for leaf in given:
            is_used = bool(self.place_of(leaf).file)  # what looks at it from without has no place
            if leaf.requires_grad and not is_used and (id(leaf) in self.uses or id(leaf) not in self._made):
                self.uses[id(leaf)], self._made[id(leaf)] = self._places.here()[0], leaf
        made = tensors_in(result)
        self._made |= {id(output): output for output in made}  # kept, or an address could be given to another
        for output in made:
            if output.grad_fn is not None and output.grad_fn not in self.nodes:
                self.nodes[output.grad_fn] = self._places.here()[0]
        self._account(name, given, made)

    def _account(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        valued = given[:1] if name in _BY_EXAMPLE else given
        reached = [self._followed[id(t)] for t in valued if id(t) in self._followed]
        if not reached or name.startswith(_NEW_VALUES):
            return
        cuts = frozenset[int]().union(*(each.cuts for each in reached))
        smooth = frozenset[int]().union(*(each.smooth_cuts for each in reached))
        floating = [tensor for tensor in made if _is_number(tensor)]
        is_live = any(each.tensor.requires_grad for each in reached)
        is_decision = name in _CASTS and bool(floating) and all(each.tensor.dtype == torch.bool for each in reached)
        is_dead = name in _TO_PYTHON or (bool(floating) and not any(output.requires_grad for output in floating))
        if is_decision or (is_live and is_dead):
            cuts |= {len(self.cuts)}
            smooth |= set() if is_decision else {len(self.cuts)}
            self.cuts.append(Cut(name, self._places.here()[0], is_decision))
        for output in made:
            self._followed[id(output)] = _Followed(output, cuts, smooth if _is_number(output) else frozenset())
        self._read(given if made else [], made)
        if not made and given and (name == "__setitem__" or name.endswith("_")):
            self._followed[id(given[0])] = _Followed(given[0], cuts, smooth)
            self._read([], given[:1])

    def _read(self, given: list[Tensor], made: list[Tensor]) -> None:
        for each in given:
            self._unread.pop(id(each), None)
        self._unread |= dict.fromkeys(map(id, made), self._places.here()[0])

    def _apply(self, name: str, run: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """A custom Function computes without gradients inside; what it gives out is what counts."""
        outer, self._is_inside = self._is_inside, True
        try:
            result = run()
        finally:
            self._is_inside = outer
        if not outer:
            self._note(name, args, result)
        return result

    def _see_function(self, ctx: Any) -> None:
        self.nodes[ctx] = self._places.here()[0]


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _EveryFunction(TorchFunctionMode):
    def __init__(self, watch: PathWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function under the eyes of the watch."""
        return self._watch.called(func, args, kwargs or {})


def _name(func: Any) -> str:
    """Its plain name: data for the getter of Tensor.data."""
    name = str(getattr(func, "__name__", func))
    owner = getattr(func, "__self__", None)
    return str(getattr(owner, "__name__", name)) if name == "__get__" else name
