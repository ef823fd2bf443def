"""Windows that a part of a module holds while its attention weighs all tokens, however far away.

Every softmax in the calls of such a part is seen, torch's and one by hand. One that weighs less than all tokens, or
that is of something else, speaks for the window. What is left is asked twice: does another window, put in its place,
change the output, and are the weights beyond it used at all.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.held_windows import Held, held_windows
from nsa_doctor.probes.attention.score_watch import SOFTMAX
from nsa_doctor.probes.attention.window_uses import has_another_use
from nsa_doctor.probes.hooks.attribute_lines import methods_of
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.reached_lines import Lines, reached_lines
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_TIMES, _MORE = 4, 3  # a sequence is so many windows long
_USUAL, _LONGEST = 259, 1027
_ADDED = 8  # tokens of its own that a model may put beside those it is given
_NEAR = 3  # windows: what is further away is beyond any way to count
_ROUNDINGS = 1e3


@dataclass(frozen=True)
class Unkept:
    """A window without effect: who holds it, the line that weighs all tokens, how many maps, how far away they see."""

    held: Held
    place: Place
    length: int
    num_maps: int
    distance: int


@dataclass
class _Seen:
    """What was seen in the calls of one part: its whole maps, where, in which modules; whether there was another."""

    places: list[Place] = field(default_factory=list)
    owners: set[str] = field(default_factory=set)
    distance: int = 0
    has_other: bool = False


def windows_to_ask(sp: BuiltModule) -> tuple[list[Held], list[Held]]:
    """All windows that parts of it hold, and those of them that its sequences exceed by far."""
    held = list(held_windows(sp.module))
    most = min(_LONGEST, sp.subject.max_length)
    return held, [each for each in held if _TIMES * each.reach + _MORE <= most]


def unkept_windows(sp: BuiltModule, held: Sequence[Held], asked: Sequence[Held]) -> Iterator[Unkept]:
    """Those of the windows asked for that nothing keeps."""
    by_length: dict[int, list[Held]] = defaultdict(list)
    for each in asked:
        by_length[_length_for(sp, each.reach)].append(each)
    for length, windows in by_length.items():
        x = sp.input(length)
        watch = _Watch(sp, held, length)
        output = watch.output_of(x)
        for each in windows:
            seen = watch.seen[each.path]
            is_far = seen.distance > _NEAR * each.reach + 2 and _speaks_against(each, held, watch.seen)
            is_without = is_far and not _has_effect(sp, each, x) and _weighs_beyond(sp, each, held, x, output)
            if is_without and not has_another_use(each.module, each.name, _reached(sp, each.module, x)):
                yield Unkept(each, seen.places[0], length, len(seen.places), seen.distance)


def _reached(sp: BuiltModule, holder: nn.Module, x: Tensor) -> Lines:
    files = {file for file, _ in methods_of(holder)}
    with torch.no_grad(), unobserved(), reached_lines(files.__contains__) as lines:
        sp(x)
    return lines


def _length_for(sp: BuiltModule, reach: int) -> int:
    """Far longer than the window, odd where it may be: whole blocks of it would look like all tokens."""
    least, times = _TIMES * reach + _MORE, sp.subject.whole_multiples_of
    length = min(max(least, _USUAL), sp.subject.max_length)
    length = length - 1 if length % 2 == 0 and length > least else length
    return max(length // times, 1) * times


def _speaks_against(held: Held, all_: Sequence[Held], seen: dict[str, _Seen]) -> bool:
    own = seen[held.path]
    if held.is_off or own.has_other or not own.places:
        return False
    if not held.is_of_attention and own.owners != {held.path}:
        return False  # a model's number of steps, or another of a part around the attention
    alike = [each.path for each in all_ if type(each.module) is type(held.module)]
    return not any(seen[path].has_other for path in alike)


def _has_effect(sp: BuiltModule, held: Held, x: Tensor) -> bool:
    """Whether another window in its place gives another output, or an error."""
    with torch.no_grad(), unobserved():
        before = sp(x)
        own = vars(held.module)[held.name]
        for other in held.others:
            setattr(held.module, held.name, type(own)(other) if isinstance(other, tuple) else other)
            try:
                after = attempt(lambda: sp(x))
            finally:
                setattr(held.module, held.name, own)
            if isinstance(after, Caught) or not _is_same(before, after):
                return True
    return False


def _weighs_beyond(sp: BuiltModule, held: Held, all_: Sequence[Held], x: Tensor, output: Tensor) -> bool:
    """Whether its output needs the weights beyond the window: they may be taken away after the softmax."""
    with unobserved():
        without = attempt(lambda: _Watch(sp, all_, x.shape[1], without=held).output_of(x))
    return not isinstance(without, Caught) and not _is_same(output, without)


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    eps = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    return bool((one - other).abs().max() <= _ROUNDINGS * eps * one.abs().max())


class _Watch(DispatchWatcher):
    """Notes each map of attention with all holders of windows in whose calls it is made."""

    def __init__(self, sp: BuiltModule, held: Sequence[Held], length: int, without: Held | None = None) -> None:
        super().__init__()
        self.seen: dict[str, _Seen] = {each.path: _Seen() for each in held}
        self._sp, self._length, self._without = sp, length, without
        self._places = Places(FrameFilter(sp.subject.packages))
        self._places.know(sp.module)
        self._calls: list[str] = []
        self._owning = {path for path, part in sp.module.named_modules() if any(True for _ in part.parameters())}
        self._powers: dict[int, Tensor] = {}  # all are kept, or another tensor would get their number
        self._totals: dict[int, tuple[Tensor, Tensor]] = {}

    def output_of(self, x: Tensor) -> Tensor:
        """The module's output for `x`, whose maps are noted."""
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad(), self._hooked(), sdpa_kernel(SDPBackend.MATH), self._places.watching(), self:
                return self._sp(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        hooks = []
        for path, part in self._sp.module.named_modules():
            hooks.append(part.register_forward_pre_hook(lambda *_, path=path: self._calls.append(path)))
            hooks.append(part.register_forward_hook(lambda *_: self._end(), always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _end(self) -> None:
        self._calls.pop()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note it where it is a softmax."""
        result, name = func(*args, **kwargs), operation_name(func)
        holders = [self.seen[path] for path in set(self._calls) if path in self.seen]
        if not holders:
            return result
        with untraced():
            if "attention" in name:  # one that torch did not take apart
                self._note_other(holders)
            elif self._is_map(name, args, kwargs, result) and isinstance(result, Tensor):
                return self._note(holders, result)
        return result

    def _is_map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Whether it is a softmax of several rows, torch's or one that divides powers of e by their sum."""
        if not isinstance(result, Tensor) or result.ndim < 2:
            return False
        if name in SOFTMAX:
            return True
        if name == "exp":
            self._powers[id(result)] = result
        elif name == "sum" and args and id(args[0]) in self._powers:
            self._totals[id(result)] = result, args[0]
        elif name in ("div", "div_") and isinstance(args[1], Tensor) and id(args[1]) in self._totals:
            return self._totals[id(args[1])][1] is args[0]
        return False

    def _note_other(self, holders: Sequence[_Seen]) -> None:
        for each in holders:
            each.has_other = True

    def _note(self, holders: Sequence[_Seen], weights: Tensor) -> Tensor:
        """Note a map, and give what is to be taken for it."""
        distance = self._distance(weights)
        if distance == 0:
            self._note_other(holders)
            return weights
        place = self._places.here()[0]
        owner = next((path for path in reversed(self._calls) if path in self._owning), "")
        for each in holders:
            each.places.append(place)
            each.owners.add(owner)
            each.distance = max(each.distance, distance)
        if self._without is None or self._without.path not in self._calls:
            return weights
        near = _NEAR * self._without.reach + 2
        return weights * torch.ones_like(weights).triu(-near).tril(near)

    def _distance(self, weights: Tensor) -> int:
        """How far away the map weighs tokens, where every head weighs all on one side or on both; else 0."""
        num_keys = weights.shape[-1]
        if weights.shape[-2] != num_keys or not self._length <= num_keys <= self._length + _ADDED:
            return 0
        seen = (weights > 0).flatten(0, -3) if weights.ndim > 2 else (weights > 0)[None]
        past = torch.ones(num_keys, num_keys, dtype=torch.bool, device=weights.device).tril()
        for each in seen:
            sees_past, sees_future = bool(each[past].all()), bool(each[~past].all())
            is_causal = sees_past and not bool(each[~past].any())
            is_reversed = bool(each[past.mT].all()) and not bool(each[~past.mT].any())
            if not ((sees_past and sees_future) or is_causal or is_reversed):
                return 0
        return num_keys - 1
