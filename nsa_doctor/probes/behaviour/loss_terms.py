"""Of what a loss is the sum: terms that are one and the same, and terms from which no gradient comes."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.softened_losses import computed_by
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.operations import tensors_in

_LOSSES = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "ctc_loss", "cosine_embedding_loss", "triplet_margin_loss",
    "margin_ranking_loss", "gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss",
})  # fmt: skip
_ADDING = frozenset({
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__", "stack", "cat",
})  # fmt: skip
_MAKING = re.compile(r"new_\w+|\w+_like")  # as large as what is given, and nothing of it
_NEAR_THE_END = 500  # nodes of the graph


@dataclass(frozen=True)
class SameTerm:
    """A function of a loss that is asked twice for the same, and the two lines."""

    function: str
    first: Place
    place: Place


@dataclass(frozen=True)
class DeadTerm:
    """A number that is added to a loss and has no gradient, the line that adds it and the one that cuts the way."""

    value: float
    added: Place
    cut: Place


def same_terms(sp: BuiltModule, call: Callable[[], Any]) -> list[SameTerm] | Caught:
    """Those of the loss that one call returns or goes back through; what it raises, if it raises."""
    watch = _watched(sp, call)
    return watch if isinstance(watch, Caught) else watch.same()


def dead_terms(sp: BuiltModule, call: Callable[[], Any]) -> list[DeadTerm] | Caught:
    """Those of the loss that one call returns or goes back through; what it raises, if it raises."""
    watch = _watched(sp, call)
    return watch if isinstance(watch, Caught) else watch.dead()


@dataclass(frozen=True)
class _Asked:
    """One call of a function of a loss."""

    function: str
    tensors: list[Tensor]
    others: str
    answer: Tensor
    place: Place

    def is_as(self, other: "_Asked") -> bool:
        """Whether it was given the same, computed once."""
        if (self.function, self.others, len(self.tensors)) != (other.function, other.others, len(other.tensors)):
            return False
        pairs = list(zip(self.tensors, other.tensors, strict=True))
        are_one = all(computed_by(one) is computed_by(two) for one, two in pairs)
        return are_one and all(one.shape == two.shape and torch.equal(one, two) for one, two in pairs)


class _Watch(TorchFunctionMode):
    """Follows what a loss is made of; a function mode is a base class by torch's design."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.ends: list[Tensor] = []  # what the call goes back through, or returns
        self._places = places
        self._asked: list[_Asked] = []
        self._added: list[tuple[Tensor, DeadTerm]] = []
        self._cuts: dict[int, tuple[Tensor, Place]] = {}  # the line that cut the way to a tensor, by its identity

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        given = tensors_in(args, named)
        if name == "backward":
            self.ends += given[:1]
        answer = func(*args, **named)
        if isinstance(answer, Tensor) and answer.is_floating_point() and not is_transformed(answer):
            self._look(name, args, named, answer)
        return answer

    def same(self) -> list[SameTerm]:
        """Those of the loss that are computed twice."""
        near = set(_nodes(self.ends))
        asked = [each for each in self._asked if each.answer.grad_fn in near]
        pairs = ((first, later) for index, later in enumerate(asked) for first in asked[:index])
        return [SameTerm(later.function, first.place, later.place) for first, later in pairs if later.is_as(first)]

    def dead(self) -> list[DeadTerm]:
        """Those of the loss from which no gradient comes."""
        near = set(_nodes(self.ends))
        return [each for total, each in self._added if total.grad_fn in near]

    def _look(self, name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Tensor) -> None:
        given = [each for each in tensors_in(args, named) if each.is_floating_point()]
        if not answer.requires_grad:
            if not _MAKING.fullmatch(name):
                self._follow_cut(given, answer)
            return
        if name in _LOSSES:
            place, is_own = self._places.here()
            others = repr([each for each in (*args, *named.items()) if not tensors_in(each)])
            if is_own:
                self._asked.append(_Asked(name, tensors_in(args, named), others, answer, place))
        elif name in _ADDING and len(given) > 1 and all(each.numel() == 1 for each in given):
            for each in given:
                if id(each) in self._cuts and not each.requires_grad and float(each):
                    dead = DeadTerm(float(each), self._places.here()[0], self._cuts[id(each)][1])
                    self._added.append((answer, dead))

    def _follow_cut(self, given: Iterable[Tensor], answer: Tensor) -> None:
        """Keep the line where the way back ends; a number that is cut off as a whole is meant to be."""
        for each in given:
            if each.requires_grad and each.numel() > 1:
                self._cuts[id(answer)] = (answer, self._places.here()[0])
                return
            if id(each) in self._cuts:
                self._cuts[id(answer)] = (answer, self._cuts[id(each)][1])
                return


def _watched(sp: BuiltModule, call: Callable[[], Any]) -> _Watch | Caught:
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places)

    def watched() -> None:
        with preserved_state(), torch.enable_grad(), uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with places.watching(), watch:
                watch.ends += tensors_in(call())

    with unobserved():
        ended = attempt(watched)
    return ended if isinstance(ended, Caught) else watch


def _nodes(ends: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of the graph nearest to its ends."""
    row = [each.grad_fn for each in ends if each.grad_fn is not None]
    seen: set[Any] = set()
    while row and len(seen) < _NEAR_THE_END:
        yield from row
        seen.update(row)
        before = (node for each in row for node, _ in each.next_functions)
        row = [node for node in dict.fromkeys(before) if node is not None and node not in seen]
