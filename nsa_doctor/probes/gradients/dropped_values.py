"""Parameters whose values a pass computes with, and of which nothing that it makes is read to the end.

By values alone, for what raises under autograd: other values are put in their place, and two passes are compared
operation by operation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.hooks.phase import in_mode, unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.internal import DispatchWatcher, part_at, untraced
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in
from nsa_doctor.subject.contract import Subject

_LENGTHS = (16, 67)
_MODES: tuple[Mode, ...] = ("eval", "train")
_TIMES = 3.0
_LEAST = 0.02
_MOST_PASSES, _MOST_OPERATIONS = 240, 20_000
_OF_SHAPE_ALONE = ("like", "new_", "empty", "zeros", "ones", "full", "rand", "arange", "is_", "_has", "bernoulli")
_HANDING_OUT = frozenset({"numpy", "tolist", "__array__"})

_Values = tuple[float, ...]


@dataclass(frozen=True)
class Dropped:
    """Parameters by name, and the line that makes the last of what is computed with them."""

    names: tuple[str, ...]
    place: Place


def dropped_values(subject: Subject) -> list[Dropped]:
    """The largest parts of which all this holds, together where they end on one line.

    In training mode and out of it, at several lengths, as it starts and with other weights. What decides something,
    what is kept, what is returned beside the answer and what another operation takes away are none.
    """
    trials = [trial for trial in _trials(subject) if trial.is_repeatable()]
    if not trials or {trial.mode for trial in trials} != set(_MODES):
        return []
    by_line: dict[Place, list[str]] = {}
    watched = [next(trial for trial in trials if trial.mode == mode) for mode in _MODES]
    for path, names in _topmost(trials, "", [_MOST_PASSES]):
        found = [attempt(partial(trial.last_of, path, names)) for trial in watched]
        if all(isinstance(each, Place) and each.file for each in found) and isinstance(found[0], Place):
            by_line.setdefault(found[0], []).extend(names)
    return [Dropped(tuple(dict.fromkeys(names)), place) for place, names in by_line.items()]


def _trials(subject: Subject) -> Iterator["_Trial"]:
    for is_randomised in (True, False):
        for mode in _MODES:
            for length in dict.fromkeys(min(each, subject.max_length) for each in _LENGTHS):
                sp = built(subject, is_randomised=is_randomised)
                yield _Trial(BuiltModule(subject, in_mode(sp.module, mode), sp.dtype), length, mode)


def _topmost(trials: Sequence["_Trial"], path: str, passes: list[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each largest part that a pass calls and that changes nothing, by its path, and the names in it."""
    part = part_at(trials[0].sp.module, path)
    for name, child in part.named_children():
        own = f"{path}.{name}".removeprefix(".")
        names = tuple(f"{own}.{each}" for each, p in child.named_parameters() if p.requires_grad and p.numel())
        if not names or passes[0] <= 0:
            continue
        has_effect = False
        for trial in trials:
            passes[0] -= 1
            if trial.changes(names):
                has_effect = True
                break
        if has_effect:
            yield from _topmost(trials, own, passes)
        elif all(trial.calls(own) for trial in trials):
            yield own, names


@dataclass
class _Trial:
    """One module in one mode, and what it gives at one length."""

    sp: BuiltModule
    length: int
    mode: Mode
    before: list[_Values] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def is_repeatable(self) -> bool:
        """Whether two passes give the same; keeps what they give."""
        found = [attempt(self._outcome), attempt(self._outcome)]
        if any(isinstance(each, Caught) for each in found) or found[0] != found[1]:
            return False
        assert not isinstance(found[0], Caught)
        self.before = found[0]
        return True

    def calls(self, path: str) -> bool:
        """Whether a part or one inside of it was called."""
        return any(each == path or each.startswith(f"{path}.") for each in self.called)

    def changes(self, names: Sequence[str]) -> bool:
        """Whether anything that is seen of a pass changes with these parameters."""
        with self._other_values(names):
            after = attempt(self._outcome)
        return isinstance(after, Caught) or after != self.before

    def last_of(self, path: str, names: Sequence[str]) -> Place | None:
        """The line of the last operation that computes with them, where none takes away what it is given of it.

        In the nearest part around theirs that is called itself.
        """
        around = [path[:at] for at, letter in enumerate(path) if letter == "."]
        holder = part_at(self.sp.module, next((each for each in reversed(around) if each in self.called), ""))
        own = _Operations(self.sp)
        self._pass(own)
        other = _Operations(self.sp, beside=own.seen, holder=holder)
        with self._other_values(names):
            self._pass(other)
        if [each.name for each in own.seen] != [each.name for each in other.seen]:
            return None
        last = None
        for one, two in zip(own.seen, other.seen, strict=True):
            if one.given == two.given:
                continue
            if one.made == two.made or one.is_decision:
                return None
            last = two.place or last
        return last

    def _pass(self, watch: "_Operations") -> None:
        with torch.no_grad(), unobserved(), watch.places.watching(), watch, _HandedOut(watch.seen):
            self.sp(self._input())

    def _input(self) -> Tensor:
        return self.sp.input(self.length, batch=2)

    def _outcome(self) -> list[_Values]:
        """The answer, what its parts return behind their first, and what is kept."""
        seen: list[_Values] = []

        def note(path: str, answer: Any) -> None:
            self.called.add(path)
            found = list(tensors_in(answer))
            seen.extend(_values(each) for each in (found[1:] if path else found))

        parts = self.sp.module.named_modules()
        handles = [
            part.register_forward_hook(lambda _part, _given, answer, path=path: note(path, answer))
            for path, part in parts
        ]
        try:
            with torch.no_grad(), unobserved():
                seen.append(_values(self.sp(self._input())))
        finally:
            for handle in handles:
                handle.remove()
        seen += [_values(holder.tensor) for holder in tensors_held(self.sp.module)]
        numbers = (value for part in self.sp.module.modules() for value in vars(part).values())
        return [*seen, tuple(value for value in numbers if isinstance(value, float))]

    @contextmanager
    def _other_values(self, names: Sequence[str]) -> Iterator[None]:
        held = dict(self.sp.module.named_parameters())
        chosen = [held[name] for name in names]
        kept = [each.detach().clone() for each in chosen]
        generator = torch.Generator().manual_seed(self.sp.subject.seed + 17)
        try:
            with torch.no_grad():
                for each in chosen:
                    noise = torch.randn(each.shape, generator=generator).to(each)
                    each.add_(noise * max(_TIMES * float(each.abs().mean()), _LEAST))
            yield
        finally:
            with torch.no_grad():
                for each, own in zip(chosen, kept, strict=True):
                    each.copy_(own)


@dataclass(frozen=True)
class _Operation:
    """One operation: what it is given and makes, as sums, and whether it makes no numbers with a fraction of it.

    place: where it stands, if it is given something else than that of the same number in a pass before.
    """

    name: str
    given: tuple[_Values, ...]
    made: tuple[_Values, ...]
    is_decision: bool
    place: Place | None


class _Operations(DispatchWatcher):
    def __init__(self, sp: BuiltModule, *, beside: Sequence[_Operation] = (), holder: nn.Module | None = None) -> None:
        super().__init__()
        self.seen: list[_Operation] = []
        self.places = Places(FrameFilter(sp.subject.packages))
        self.places.know(sp.module)
        self._beside, self._holder = beside, holder

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note it, but for those that read a shape alone."""
        name, number = operation_name(func), len(self.seen)
        if any(word in name for word in _OF_SHAPE_ALONE) or number >= _MOST_OPERATIONS:
            return func(*args, **kwargs)
        with untraced():
            given = tuple(_values(each) for each in tensors_in(args, kwargs))
        result = func(*args, **kwargs)
        with untraced():
            tensors = list(tensors_in(result))
            is_decision = not tensors or any(not each.is_floating_point() for each in tensors)
            made = tuple(_values(each) for each in tensors)
            is_other = number < len(self._beside) and given != self._beside[number].given
            place = self._place() if is_other else None
        self.seen.append(_Operation(name, given, made, is_decision, place))
        return result

    def _place(self) -> Place | None:
        inside = None if self._holder is None else self.places.of_method(self._holder)
        place = inside or self.places.here()[0]
        return place if place.file else None


class _HandedOut(TorchFunctionMode):
    """Notes what numpy and Python are given, which is no operation; a function mode is a base class by design."""

    def __init__(self, seen: list[_Operation]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function; what it hands out decides something, for all that is known."""
        name = getattr(func, "__name__", "")
        if name in _HANDING_OUT and args and isinstance(args[0], Tensor):
            with untraced():
                given = _values(args[0])
            self._seen.append(_Operation(name, (given,), (), is_decision=True, place=None))
        return func(*args, **(kwargs or {}))


def _values(tensor: Tensor) -> _Values:
    """Sums that differ between two tensors of other values."""
    if tensor.is_meta or tensor.is_complex() or not tensor.numel():
        return (float(tensor.numel()),)
    flat = tensor.detach().double().flatten()
    flat = torch.where(torch.isfinite(flat), flat, 1e3)
    weights = torch.linspace(1, 2, len(flat), dtype=torch.float64, device=flat.device)
    return float(len(flat)), float(flat.sum()), float(flat @ weights)
