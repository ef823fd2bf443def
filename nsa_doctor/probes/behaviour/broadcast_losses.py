"""Which arithmetic in a loss broadcasts answers [B, 1] and targets [B] to each other, so that it is of all pairs."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.watched_losses import watched_loss
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import is_transformed, memory_of, tree_leaves
from nsa_doctor.probes.model.built_module import BuiltModule

_LOSSES = re.compile(
    r"(mse|l1|smooth_l1|huber|gaussian_nll|poisson_nll|soft_margin|hinge_embedding)_loss|kl_div|"
    r"binary_cross_entropy(_with_logits)?"
)
_ARITHMETIC = re.compile(r"add|sub|subtract|mul|multiply|div|divide|true_divide")
_OF_TWO = re.compile(r"pow|float_power|maximum|minimum|fmax|fmin|logaddexp|logaddexp2|where|xlogy|lerp|atan2|hypot")
_ELEMENTWISE = re.compile(
    r"abs|absolute|square|pow|neg|negative|exp|log|log1p|expm1|sqrt|rsqrt|relu|elu|leaky_relu|clamp|clamp_min|clamp_max|"
    r"clip|sigmoid|tanh|softplus|logsigmoid|minimum|maximum|where|masked_fill|to|float|double|half|bfloat16|type|type_as|"
    r"clone|contiguous|detach|cosh|logaddexp|erf|lt|le|gt|ge|eq|ne|__lt__|__le__|__gt__|__ge__"
)
_SECOND = re.compile(r"min|max")  # elementwise of two tensors, and of one the choice of a pair
_SUMS = re.compile(r"mean|sum|nanmean|nansum")
_VIEWS = re.compile(r"view|reshape|flatten|squeeze|unsqueeze|ravel|getitem")
_ROOTS = frozenset(("backward", "grad"))


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """An operation on two tensors whose result has more values than either.

    `is_of_pairs`: they have the same axes but for those of 1 that one of them lacks, or, of fewer axes, one has its
    rows where the other has something else, as [B, 1] for [B, 1, S]; and nobody asked for the pairs.
    """

    operation: str
    shapes: tuple[torch.Size, torch.Size]
    result: torch.Size
    place: Place
    is_of_pairs: bool

    @property
    def line(self) -> tuple[str, int]:
        """The file and the line."""
        return self.place.file, self.place.line


def broadcasts(sp: BuiltModule, call: Callable[[], Any], rows: int = 0) -> list[Broadcast] | Caught:
    """Those of one call that nothing but elementwise functions, sums and means leads from to what is differentiated.

    `rows` is how many it is given, a size that nothing else has; 0 where that is not known. What is differentiated is
    what backward is called on, or else the numbers that the call returns.
    """
    found = watched_loss(sp, call, lambda places: _Watch(places, rows))
    if isinstance(found, Caught):
        return found
    watch, answer = found
    return list(watch.differentiated(answer))


class _Watch(TorchFunctionMode):
    """Follows each broadcast; a function mode is a base class by torch's design."""

    def __init__(self, places: Places, rows: int) -> None:
        super().__init__()
        self._places, self._rows = places, rows
        self._spread: dict[int, tuple[Tensor, Broadcast]] = {}  # with the tensor, or its id would be another's
        self._widened: dict[int, tuple[Tensor, tuple[str, str]]] = {}  # in which function an axis of 1 was asked for
        self._carrying: dict[int, Tensor] = {}  # what has an axis that was asked for, also where others were summed
        self._numbers: list[tuple[Any, Broadcast]] = []
        self._roots: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function and follow what it gives."""
        name, given = _name_of(func), kwargs or {}
        if name in _ROOTS:
            self._roots += [leaf for leaf in tree_leaves(args[:1]) if isinstance(leaf, Tensor)]
        answer = func(*args, **given)
        if isinstance(answer, Tensor) and not is_transformed(answer):
            tensors = [each for each in (*args, *given.values()) if isinstance(each, Tensor)]
            self._note_axes(name, tensors, answer, args[1:])
            found = self._followed(name, tensors, answer) or self._new(name, tensors, given)
            if found is not None and answer.numel() > 1:
                self._spread[id(answer)] = answer, found
            elif found is not None and answer.grad_fn is not None:
                self._numbers.append((answer.grad_fn, found))
        return answer

    def differentiated(self, answer: Any) -> Iterator[Broadcast]:
        """Those that what is differentiated was made of."""
        returned = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor) and leaf.numel() == 1]
        nodes = _nodes_behind(self._roots or returned)
        yield from (found for node, found in self._numbers if node in nodes)

    def _followed(self, name: str, tensors: list[Tensor], answer: Tensor) -> Broadcast | None:
        """The broadcast that an operation goes on with, unless it is given as many values that are not of it."""
        known = [self._spread[id(each)][1] for each in tensors if id(each) in self._spread]
        others = [each for each in tensors if id(each) not in self._spread]
        if not known:
            return None
        is_elementwise = any(kind.fullmatch(name) for kind in (_ELEMENTWISE, _ARITHMETIC, _LOSSES))
        is_elementwise |= _SECOND.fullmatch(name) is not None and len(tensors) > 1
        most = max(math.prod(shape) for shape in known[0].shapes)
        if is_elementwise and all(each.numel() <= most for each in others):
            return known[0]
        is_whole = _VIEWS.fullmatch(name) is not None and answer.numel() == tensors[0].numel()
        return known[0] if is_whole or _SUMS.fullmatch(name) else None

    def _new(self, name: str, tensors: list[Tensor], given: dict[str, Any]) -> Broadcast | None:
        is_a_loss = _LOSSES.fullmatch(name) is not None
        if len(tensors) < 2 or not (is_a_loss or _ARITHMETIC.fullmatch(name) or _OF_TWO.fullmatch(name)):
            return None
        if any(id(each) in self._spread for each in tensors):  # what ended does not begin again
            return None
        pairs = combinations(tensors, 2) if name == "where" else [(tensors[0], tensors[1])]
        spread = ((first, second) for first, second in pairs if _is_spread(first, second))
        found = next(spread, None)
        place, is_own = self._places.here() if found is not None else (Place(), False)
        if found is None or not is_own:
            return None
        is_of_all = _has_the_same_axes(*found)
        is_asked_for = given.get("reduction", "mean") == "none" or not is_a_loss
        is_asked_for = is_asked_for and any(self._is_widened_in(each, place) for each in found)
        is_asked_for = is_asked_for and (is_of_all or not all(id(each) in self._carrying for each in found))
        is_of_pairs = is_of_all or _has_its_rows_elsewhere(*found, self._rows)
        return Broadcast(
            operation=name,
            shapes=(found[0].shape, found[1].shape),
            result=torch.broadcast_shapes(*(each.shape for each in found)),
            place=place,
            is_of_pairs=is_of_pairs and not is_asked_for and not _is_the_same(*found),
        )

    def _note_axes(self, name: str, tensors: list[Tensor], answer: Tensor, others: tuple[Any, ...]) -> None:
        first = tensors[0] if tensors else answer
        is_wider = answer.numel() == first.numel() and _ones(answer) > _ones(first)
        index = others[0] if name == "getitem" and others else ()
        is_indexed = any(each is None for each in (index if isinstance(index, tuple) else (index,)))
        if _VIEWS.fullmatch(name) and (is_wider or is_indexed):
            place = self._places.here()[0]
            self._widened[id(answer)] = answer, (place.file, place.function)
        elif id(first) in self._widened and answer.shape == first.shape and not _is_paired(tensors):
            self._widened.setdefault(id(answer), (answer, self._widened[id(first)][1]))
        is_kept = answer.shape == first.shape or (_SUMS.fullmatch(name) is not None and _ones(answer) > 0)
        if id(answer) in self._widened or (id(first) in self._carrying and is_kept):
            self._carrying[id(answer)] = answer

    def _is_widened_in(self, tensor: Tensor, place: Place) -> bool:
        """Whether the function there, or one that called it, asked for an axis of the tensor."""
        if id(tensor) not in self._widened:
            return False
        asked = self._widened[id(tensor)][1]
        frame: FrameType | None = frame_above(1)
        while frame is not None and asked != (place.file, place.function):
            if (frame.f_code.co_filename, frame.f_code.co_name) == asked:
                return True
            frame = frame.f_back
        return asked == (place.file, place.function)


def _is_paired(tensors: list[Tensor]) -> bool:
    """Whether it was given another tensor of its shape: what an axis was asked for is done with that."""
    return any(each is not tensors[0] and each.shape == tensors[0].shape for each in tensors[1:])


def _name_of(func: Any) -> str:
    """A function's name, and that of an operator without what says on which side it stands: `add` of `__radd__`."""
    name = str(getattr(func, "__name__", ""))
    bare = name.strip("_")
    bare = bare[1:] if bare != name and re.fullmatch(r"[ri](add|sub|mul|truediv|pow)", bare) else bare
    return "div" if bare == "truediv" else bare


def _ones(tensor: Tensor) -> int:
    return sum(size == 1 for size in tensor.shape)


def _has_the_same_axes(first: Tensor, second: Tensor) -> bool:
    """Whether one has axes of 1 that the other lacks, and the same axes beside."""
    sizes = [[size for size in each.shape if size != 1] for each in (first, second)]
    return first.ndim != second.ndim and sizes[0] == sizes[1]


def _has_its_rows_elsewhere(first: Tensor, second: Tensor, rows: int) -> bool:
    """Whether, of different numbers of axes, the rows of one, aligned from the right, meet none of the other."""
    if first.ndim == second.ndim or any(list(each.shape).count(rows) != 1 for each in (first, second)):
        return False
    return first.ndim - first.shape.index(rows) != second.ndim - second.shape.index(rows)


def _is_spread(first: Tensor, second: Tensor) -> bool:
    """Whether what they are broadcast to has more values than either, of which each has several."""
    num_values = torch.broadcast_shapes(first.shape, second.shape).numel()
    return min(first.numel(), second.numel()) > 1 and num_values > max(first.numel(), second.numel())


def _is_the_same(first: Tensor, second: Tensor) -> bool:
    """Whether the pairs are those of one tensor with itself."""
    return memory_of(first) == memory_of(second) or torch.equal(first.detach().flatten(), second.detach().flatten())


def _nodes_behind(roots: list[Tensor]) -> set[Any]:
    waiting, seen = [root.grad_fn for root in roots if root.grad_fn is not None], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions if each is not None]
    return seen
