"""Parts that pool tokens under a mask of no padding: the same as without one, and a mean however many are equal.

A part is called again as the module called it: without its mask, and with one token over and over, of which there are
all or half as many. What is pooled has no axis of tokens.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.recording import record
from nsa_doctor.probes.internal import tree_leaves, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import seed_everything

_MEAN = re.compile(r"mean|avg|average", re.IGNORECASE)
_NO_POOL = re.compile(r"means|meaning|variance|var_|std|field|shift|sum", re.IGNORECASE)
_NAMES_OF_WAYS = re.compile(r"_?(?!\w*(head|layer|loss))(pool\w*|agg\w*|reduc\w*|mode|readout|kind|method|strategy)")
_OF_LOSSES = re.compile(r"_?reduc\w*")
_APART, _EPSILON, _ROUNDINGS = 0.01, 1e-3, 1e3


@dataclass(frozen=True)
class PoolFault:
    """What is wrong with what a part pools, and the line that takes tokens together."""

    text: str
    place: Place


@dataclass(frozen=True)
class _Given:
    """A part, and what the module gives it in a call with so many tokens."""

    sp: BuiltModule
    part: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    length: int

    @property
    def masks(self) -> list[int | str]:
        """By number or by name, the arguments of ones alone, or of zeros, with an axis of tokens."""
        named = [*enumerate(self.args), *self.kwargs.items()]
        return [key for key, value in named if self._is_mask(value)]

    def _is_mask(self, value: object) -> bool:
        if not isinstance(value, Tensor) or value.ndim < 2 or self.length not in value.shape[1:]:
            return False
        return bool((value == 0).all()) or bool((value == 1).all())

    def call(self, changed: Callable[[int | str, Any], Any] = lambda _key, value: value) -> "_Call":
        """What its own parts are given and what it answers where its arguments are changed, each by number or name."""
        args = [changed(number, value) for number, value in enumerate(self.args)]
        kwargs = {name: changed(name, value) for name, value in self.kwargs.items()}
        found: list[Tensor] = []

        def see(_part: nn.Module, given: object) -> None:
            found.extend(each.clone() for each in tree_leaves(given) if isinstance(each, Tensor))

        handles = [part.register_forward_pre_hook(see) for part in self.part.modules() if part is not self.part]
        seed_everything(self.sp.subject.seed)
        try:
            answer = self.part(*_copied(args), **_copied(kwargs))
        finally:
            for handle in handles:
                handle.remove()
        return _Call(found, [each for each in tree_leaves(answer) if isinstance(each, Tensor)])

    def without(self, mask: int | str) -> "_Call":
        """What it pools without that mask."""
        return self.call(lambda key, value: None if key == mask else value)

    def equal(self, number: int) -> "_Call":
        """What it pools of so many equal tokens."""
        return self.call(lambda _key, value: self._of_equal(value, number))

    def _of_equal(self, value: Any, number: int) -> Any:
        if isinstance(value, int) and value == self.length and not isinstance(value, bool):
            return number
        if not isinstance(value, Tensor):
            return value
        if value.ndim == 1 and not value.is_floating_point() and bool((value == self.length).all()):
            return torch.full_like(value, number)
        for axis in (axis for axis, size in enumerate(value.shape) if size == self.length):
            value = value.narrow(axis, 0, 1).expand(*value.shape[:axis], number, *value.shape[axis + 1 :])
        return value


@dataclass(frozen=True)
class _Call:
    """What the parts of a part are given in one call of it, and what it answers."""

    inside: list[Tensor]
    answers: list[Tensor]

    def beside(self, other: "_Call") -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor of both; none where the answers are alike, as where a sum is divided, or normed, afterwards."""
        answers = list(zip(self.answers, other.answers, strict=True))
        if not all(_are_alike(*each) for each in answers):
            yield from (*zip(self.inside, other.inside, strict=True), *answers)

    def counts(self, number: int) -> bool:
        """Whether it answers with how many tokens there are too, by which its caller may divide."""
        return any(each.numel() > 0 and bool((each == number).all()) for each in self.answers)


def pool_fault(sp: BuiltModule, length: int, run: Callable[[], object]) -> PoolFault | None:
    """The first fault of a part that pools tokens in a call of the module under a mask of no padding."""
    given = list(_given(sp, length, run))
    for find in (_otherwise_without, _grows):
        found = (attempt(partial(find, each)) for each in given)
        fault = next((each for each in found if isinstance(each, PoolFault)), None)
        if fault is not None:
            return fault
    return None


def _given(sp: BuiltModule, length: int, run: Callable[[], object]) -> Iterator[_Given]:
    """The parts that pool tokens under a mask, the innermost first, and what they are given."""
    before: dict[int, tuple[Any, Any]] = {}
    seen: list[_Given] = []

    def enter(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before[id(part)] = _copied(args), _copied(kwargs)

    def leave(part: nn.Module, _args: object, _kwargs: object, answer: object) -> None:
        args, kwargs = before.pop(id(part), ((), {}))
        found = _Given(sp, part, args, kwargs, length)
        pooled = [each for each in tree_leaves(answer) if isinstance(each, Tensor) and _is_pooled(each, length)]
        if pooled and found.masks and all(each.part is not part for each in seen):
            seen.append(found)

    own = [part for part in sp.module.modules() if not type(part).__module__.startswith("torch.")]
    handles = [part.register_forward_pre_hook(enter, with_kwargs=True) for part in own]
    handles += [part.register_forward_hook(leave, with_kwargs=True) for part in own]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    yield from seen


def _copied(given: Any) -> Any:
    return tree_map(lambda each: each.clone() if isinstance(each, Tensor) else each, given)


def _is_pooled(answer: Tensor, length: int) -> bool:
    return answer.is_floating_point() and answer.numel() > 1 and length not in answer.shape


def _otherwise_without(given: _Given) -> PoolFault | None:
    """A part that pools so many times as much where a mask hides nothing as where there is none."""
    for mask in given.masks:
        for masked, plain in given.call().beside(given.without(mask)):
            factor = _factor(masked, plain) if _is_pooled(masked, given.length) else None
            if factor is not None and abs(factor - 1) > _APART:
                text = (
                    f"under a mask that hides nothing {type(given.part).__name__} pools {factor:.3g} times what it "
                    f"does without one, at S={given.length}"
                )
                return PoolFault(text, _pooling_line(given, masked))
    return None


def _grows(given: _Given) -> PoolFault | None:
    """A mean, by its name, of equal tokens that grows by how many there are."""
    if not _is_named_a_mean(given.part):
        return None
    half = given.length // 2
    of_all, of_half = given.equal(given.length), given.equal(half)
    if of_all.counts(given.length) and of_half.counts(half):
        return None
    for all_of_them, some in of_all.beside(of_half):
        factor = _factor(all_of_them, some) if _is_pooled(all_of_them, given.length) else None
        if factor is not None and abs(factor - given.length / half) < _APART:
            text = (
                f"{type(given.part).__name__}, a mean by its name, pools {given.length} equal tokens to {factor:.3g} "
                f"times what it pools {half} to, under a mask that hides nothing"
            )
            return PoolFault(text, _pooling_line(given, all_of_them))
    return None


def _are_alike(first: Tensor, second: Tensor) -> bool:
    """Whether both are the same but for an epsilon of a norm."""
    return first.shape == second.shape and bool((first - second).abs().max() <= _EPSILON * first.abs().max())


def _is_named_a_mean(part: nn.Module) -> bool:
    """Whether its class is named after a mean, or its way to pool is; that of its loss is another."""
    has_loss = any("loss" in name for name in dir(part))
    named = {name: value for name, value in vars(part).items() if _NAMES_OF_WAYS.fullmatch(name)}
    ways = [str(value) for name, value in named.items() if not (has_loss and _OF_LOSSES.fullmatch(name))]
    names = [type(part).__name__, *(each for each in ways if len(each) < len("average_pooling_"))]
    return any(_MEAN.search(each) and not _NO_POOL.search(each) for each in names)


def _factor(first: Tensor, second: Tensor) -> float | None:
    """By which the second is multiplied to give the first, but for rounding; None where no number does, or all are one.

    Numbers that are all the same are counts, or shares.
    """
    if first.shape != second.shape or bool((second == second.flatten()[0]).all()):
        return None
    one, other = first.double(), second.double()
    factor = float((one * other).sum() / other.square().sum())
    due = _ROUNDINGS * torch.finfo(first.dtype).eps * float(one.abs().max())
    return factor if factor > 0 and float((one - factor * other).abs().max()) <= due else None


def _pooling_line(given: _Given, pooled: Tensor) -> Place:
    """The line of the last operation that is given tokens and makes of them as many values as the part pools."""
    sp = given.sp
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    recording = record(lambda: given.call().answers[-1], places)
    size, place = pooled.shape[-1], definition_place(given.part)
    for each in recording.operations:
        has_tokens = any(given.length in tensor.shape for _, tensor in each.read)
        is_taken = any(_is_pooled(made, given.length) and size in made.shape for made in each.results)
        if has_tokens and is_taken and each.place.file:
            place = each.place
    return place
