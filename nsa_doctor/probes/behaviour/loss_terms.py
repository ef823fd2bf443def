"""Of what a loss is the sum: terms that are one and the same, and terms from which no gradient comes."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.added_names import weight_added
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_LOSSES = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "ctc_loss", "cosine_embedding_loss", "cosine_similarity",
    "triplet_margin_loss", "margin_ranking_loss", "gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss",
})  # fmt: skip
_ADDING = frozenset({
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__", "stack", "cat",
})  # fmt: skip
_TAKING_OFF = frozenset({"sub", "sub_", "__sub__", "__isub__"})
_SUMS = frozenset({
    "Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "Stack", "Cat", "View", "UnsafeView", "ReshapeAlias", "Squeeze",
    "Unsqueeze", "Select", "Slice", "Index", "Clone", "ToCopy", "Expand", "Alias", "Unbind", "MaskedSelect",
})  # fmt: skip
_SCALING = frozenset({"Mul", "Div"})  # of a sum, where the other side is a number
_MAKING = re.compile(r"new_\w+|\w+_like|bernoulli|multinomial|normal|poisson")  # nothing of what is given, or drawn
_AFTER_ANOTHER = frozenset({"to", "type_as", "view_as", "reshape_as", "expand_as"})  # which only says of what shape
_FEW_LABELS = 16
_DEEP = 6
_MOST_NODES = 500


@dataclass(frozen=True)
class SameTerm:
    """A function of a loss that two calls of the source ask for the same, and their lines."""

    function: str
    first: Place
    place: Place


@dataclass(frozen=True)
class DeadTerm:
    """The largest value of what is added to a loss without a gradient, the line that adds it and the one that cuts."""

    value: float
    added: Place
    cut: Place


@dataclass(frozen=True)
class AddedWeight:
    """A number that a loss adds, and not multiplies by, whose name says that it is the weight of a term."""

    name: str
    value: float
    place: Place


def same_terms(sp: BuiltModule, call: Callable[[], Any]) -> list[SameTerm] | Caught:
    """Those of the loss that one call returns or goes back through; what it raises, if it raises."""
    watch = _watched(sp, call)
    return watch if isinstance(watch, Caught) else watch.same()


def dead_terms(sp: BuiltModule, call: Callable[[], Any]) -> list[DeadTerm | AddedWeight] | Caught:
    """Those of the loss that one call returns or goes back through; what it raises, if it raises."""
    watch = _watched(sp, call)
    return watch if isinstance(watch, Caught) else [*watch.dead(), *watch.weights()]


@dataclass(frozen=True)
class _Asked:
    """One call of a function of a loss."""

    function: str
    tensors: list[Tensor]
    others: str
    answer: Tensor
    place: Place
    instruction: tuple[str, int]

    def is_as(self, other: "_Asked") -> bool:
        """Whether it was given the same by another call of the source."""
        if (self.function, self.others, len(self.tensors)) != (other.function, other.others, len(other.tensors)):
            return False
        return self.instruction != other.instruction and all(map(_is_same, self.tensors, other.tensors))


@dataclass(frozen=True)
class _Cut:
    """Where the way back to a tensor ends: the line, and the node of the graph that made what was cut off there."""

    place: Place
    node: Any


class _Watch(TorchFunctionMode):
    """Follows what a loss is made of; a function mode is a base class by torch's design."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.ends: list[Tensor] = []  # what the call goes back through, or returns
        self._places = places
        self._asked: list[_Asked] = []
        self._added: list[tuple[Tensor, DeadTerm, _Cut]] = []
        self._cuts: dict[int, tuple[Tensor, _Cut]] = {}  # by the identity of a tensor behind one
        self._weights: list[tuple[Tensor, AddedWeight]] = []
        self._living: set[int] = set()  # cuts whose values a function with a gradient has read

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and look at what it is given and gives."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        given = tensors_in(args, named)
        if name == "backward":
            self.ends += given[:1]
        answer = func(*args, **named)
        for each in tensors_in(answer):
            if each.is_floating_point() and not is_transformed(each):
                self._look(name, args, named, each)
        return answer

    def same(self) -> list[SameTerm]:
        """Those of the loss that are computed twice."""
        near = set(_summed(self.ends))
        asked = [each for each in self._asked if each.answer.grad_fn in near]
        pairs = ((first, later) for index, later in enumerate(asked) for first in asked[:index])
        return [SameTerm(later.function, first.place, later.place) for first, later in pairs if later.is_as(first)]

    def dead(self) -> list[DeadTerm]:
        """Those of the loss from which no gradient comes.

        One whose value another term reads is part of a distance to it, and one that takes the value of a term away
        again gives the loss another value on purpose.
        """
        near = set(_summed(self.ends))
        added = [(each, cut) for total, each, cut in self._added if total.grad_fn in near]
        return [each for each, cut in added if id(cut) not in self._living and not _takes_away(near, cut)]

    def weights(self) -> list[AddedWeight]:
        """Those that the loss adds."""
        near = set(_summed(self.ends))
        return [each for total, each in self._weights if total.grad_fn in near]

    def _look(self, name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Tensor) -> None:
        given = [each for each in tensors_in(args, named) if each.is_floating_point()]
        if not answer.requires_grad:
            if not _MAKING.fullmatch(name):
                self._follow_cut(given[:1] if name in _AFTER_ANOTHER else given, answer)
            return
        if name in _ADDING - _TAKING_OFF and answer.numel() == 1:
            self._look_at_numbers(args, answer)
        if name in _LOSSES:
            self._ask(name, args, named, answer)
        if name in _TAKING_OFF and given[1:] and not given[1].requires_grad:
            return  # a baseline, or what a reference has
        behind = (each for each in given if not each.requires_grad and id(each) in self._cuts and each.numel())
        for each in behind:
            _, cut = self._cuts[id(each)]
            if name not in _ADDING:
                self._living.add(id(cut))
            elif most := float(each.detach().abs().max()):
                self._added.append((answer, DeadTerm(most, self._places.here()[0], cut.place), cut))

    def _look_at_numbers(self, args: tuple[Any, ...], answer: Tensor) -> None:
        value = next((each for each in args[:2] if _is_number(each)), None)
        if value is None:
            return
        place, is_own = self._places.here()
        name = weight_added(self._places.source()) if is_own else ""
        if name:
            self._weights.append((answer, AddedWeight(name, float(value), place)))

    def _ask(self, name: str, args: tuple[Any, ...], named: dict[str, Any], answer: Tensor) -> None:
        place, is_own = self._places.here()
        if is_own:
            others = repr([each for each in (*args, *named.items()) if not tensors_in(each)])
            called = self._places.instruction()
            self._asked.append(_Asked(name, tensors_in(args, named), others, answer, place, called))

    def _follow_cut(self, given: Iterable[Tensor], answer: Tensor) -> None:
        """Keep the line where the way back ends for what is computed behind it."""
        for each in given:
            if each.requires_grad:
                self._cuts[id(answer)] = answer, _Cut(self._places.here()[0], each.grad_fn)
                return
            if id(each) in self._cuts:
                self._cuts[id(answer)] = answer, self._cuts[id(each)][1]
                return


def _is_number(value: Any) -> bool:
    """Whether it is one that is not zero, and no gradient leads to."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.requires_grad and not is_transformed(value) and bool(value)
    return type(value) in (int, float) and bool(value)


def _watched(sp: BuiltModule, call: Callable[[], Any]) -> _Watch | Caught:
    found = watched_loss(sp, call, _Watch)
    if isinstance(found, Caught):
        return found
    watch, answer = found
    watch.ends += tensors_in(answer)
    return watch


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors were computed in one way from the same, or are one; labels of many kinds may be copies."""
    if one.shape != other.shape or not one.numel() or not torch.equal(one, other):
        return False
    if one.requires_grad or other.requires_grad:
        return one.output_nr == other.output_nr and _is_same_node(one.grad_fn, other.grad_fn, _DEEP)
    is_copied = not one.is_floating_point() and one.numel() >= _FEW_LABELS and len(one.unique()) > 2
    where = [(memory_of(each), each.storage_offset(), each.stride()) for each in (one, other)]
    return is_copied or where[0] == where[1]


def _takes_away(near: set[Any], cut: _Cut) -> bool:
    """Whether what was cut off holds one of these nodes, or one that was made in the same way."""
    return any(_is_same_node(one, other, _DEEP) for one in _summed_behind([cut.node]) for other in near)


def _is_same_node(one: Any, other: Any, depth: int) -> bool:
    if one is other:
        return True
    if depth == 0 or one is None or other is None or one.name() != other.name():
        return False
    pairs = list(zip(one.next_functions, other.next_functions, strict=False))
    return bool(pairs) and all(
        index == at and _is_same_node(first, second, depth - 1) for (first, index), (second, at) in pairs
    )


def _summed(ends: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of what a loss adds up."""
    return _summed_behind([each.grad_fn for each in ends])


def _summed_behind(row: list[Any]) -> Iterator[Any]:
    """These nodes and those that they add up, through whatever adds, takes a mean or multiplies by a number."""
    seen: set[Any] = set()
    while row and len(seen) < _MOST_NODES:
        row = [node for node in dict.fromkeys(row) if node is not None and node not in seen]
        yield from row
        seen.update(row)
        row = [before for node in row for before in _addends(node)]


def _addends(node: Any) -> list[Any]:
    kind = str(node.name()).partition("Backward")[0]
    before = [each for each, _ in node.next_functions if each is not None]
    is_scaled = kind in _SCALING and len(before) == 1 and node.next_functions[0][0] is not None
    return before if kind in _SUMS or is_scaled else []
