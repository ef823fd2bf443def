"""How the parts of a block add to its stream: to the stream itself, or to what a norm makes of it, which goes on."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.recording import Call, Operation, Recording

Kind = Literal["stream", "normed"]

_NORM = re.compile(r"norm", re.IGNORECASE)
_NORMS = frozenset({"native_layer_norm", "rms_norm", "fused_rms_norm"})
_ADDS, _SUBTRACTS = frozenset({"add", "add_"}), frozenset({"sub", "sub_"})
_TAKING_APART = frozenset({"split", "split_with_sizes", "unbind", "chunk"})
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution"})
_SAME = frozenset(  # what they give is what they are given
    {
        *("view", "unsafe_view", "reshape_alias", "alias", "clone", "detach", "to_copy", "contiguous", "squeeze"),
        *("unsqueeze", "lift_fresh"),
    }
)


@dataclass(frozen=True)
class Added:
    """An addition of what a part made of a normed stream, to the one or to the other; `held` is who made that.

    It `is_less` where the one is subtracted from the other.
    """

    number: int
    kind: Kind
    held: int
    place: Place
    is_less: bool = False


def unlike_residuals(recording: Recording) -> list[Added]:
    """Additions to a normed stream that another part of the same block goes on from, by adding to it itself.

    Twice at least, in two blocks, one that is run again, or a loop over parts: what happens once is the way into a
    stack, or out of it.
    """
    every = [each for each in _additions(recording, _Graph(recording)) if not each.is_less]
    went_on = {(each.held, each.place.module) for each in every if each.kind == "stream"}
    odd = [each for each in every if each.kind == "normed" and (each.number, each.place.module) in went_on]
    return odd if len(odd) > 1 else []


def subtracted(recording: Recording) -> list[Added]:
    """Those that subtract, where the same function of a class adds what another part makes.

    What a part makes has no other use: a season that is taken out of a stream is put together elsewhere. Two halves of
    a stream may well be coupled by a difference.
    """
    every = [each for each in _additions(recording, _Graph(recording)) if each.kind == "stream"]
    every = [each for each in every if recording.operations[each.held].name not in _TAKING_APART]
    adding = {_function(each.place) for each in every if not each.is_less}
    readers = Counter(maker for operation in recording.operations for maker in set(operation.makers))
    return [
        each
        for each in every
        if each.is_less and _function(each.place) in adding and readers[_part_of(recording, each)] == 1
    ]


def _part_of(recording: Recording, added: Added) -> int:
    """Who made what is subtracted from the stream, or what the stream is subtracted from."""
    makers = recording.operations[added.number].makers
    return next((maker for maker in makers if maker != added.held), added.held)


def _function(place: Place) -> tuple[str, str, str]:
    return place.file, place.module_class, place.function


def _additions(recording: Recording, graph: "_Graph") -> Iterator[Added]:
    """All of one pass whose part takes its input from a norm, through a product with weights."""
    for number, operation in enumerate(recording.operations):
        is_less = operation.name in _SUBTRACTS
        if (is_less or operation.name in _ADDS) and len(operation.read) == 2 and _is_of_tokens(operation):
            found = graph.kind(operation)
            if found is not None:
                yield Added(number, *found, operation.place, is_less)


def _is_of_tokens(operation: Operation) -> bool:
    one, other = (tensor for _, tensor in operation.read)
    return one.shape == other.shape and one.ndim > 2 and one.is_floating_point()


class _Graph:
    """Who made what, of what."""

    def __init__(self, recording: Recording) -> None:
        self._operations = recording.operations
        self._before = list[int]()  # of each operation those that it goes back to, as bits
        self._products = list[int]()  # of these the products
        for number, operation in enumerate(self._operations):
            makers = [each for each in operation.makers if each >= 0]
            before, products = 1 << number, (1 << number) * (operation.name in _PRODUCTS)
            for each in makers:
                before, products = before | self._before[each], products | self._products[each]
            self._before.append(before)
            self._products.append(products)
        self._norms = {norm: given for norm, given in _norms(recording, self.source) if norm >= 0}

    def source(self, number: int) -> int:
        """The operation that made the values which this one hands on."""
        while number >= 0 and self._operations[number].name in _SAME and len(self._operations[number].makers) == 1:
            number = self._operations[number].makers[0]
        return number

    def kind(self, operation: Operation) -> tuple[Kind, int] | None:
        """To what an addition adds what a part makes of a normed stream, and who made that; None where it adds none."""
        makers = [self.source(maker) for maker, _ in operation.read]
        found: list[tuple[Kind, int]] = []
        for held, part in (makers, makers[::-1]):
            if held < 0 or part < 0:
                continue
            if any(given == held and self._is_made_of(part, norm) for norm, given in self._norms.items()):
                found.append(("stream", held))
            elif held in self._norms and self._is_made_of(part, held):
                found.append(("normed", held))
        return found[0] if len(found) == 1 else None

    def follows(self, number: int, other: int) -> bool:
        """Whether an operation goes back to another."""
        return bool(self._before[number] >> other & 1)

    def _is_made_of(self, part: int, norm: int) -> bool:
        """Whether it is computed of that norm's result, by a product with something behind it."""
        if not self.follows(part, norm):
            return False
        products = self._products[part] & ~self._before[norm]
        while products:
            number = products.bit_length() - 1
            if self.follows(number, norm):
                return True
            products &= ~(1 << number)
        return False


def _norms(recording: Recording, source: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """The operations that make the results of norms, with those that made what these were given."""
    for number, operation in enumerate(recording.operations):
        if operation.name in _NORMS and operation.read:
            yield number, source(operation.read[0][0])
    for call in recording.calls:
        found = _norm(recording, call)
        if found is not None:
            yield source(found[0]), source(found[1])


def _norm(recording: Recording, call: Call) -> tuple[int, int] | None:
    """Who made the result and the input of a call, if it is that of a norm."""
    if call.module is None or not _NORM.search(type(call.module).__name__) or len(call.inputs) != 1:
        return None
    if any(each.ndim > 1 for each in call.module.parameters()):
        return None  # a layer that is named after norms
    if len(call.outputs) != 1 or call.outputs[0].shape != call.inputs[0].shape or call.start == call.end:
        return None
    given: Tensor = call.inputs[0]
    for operation in recording.operations[call.start : call.end]:
        for maker, tensor in operation.read:
            if maker < call.start and tensor.shape == given.shape and bool((tensor == given).all()):
                return call.makers[0], maker
    return None
