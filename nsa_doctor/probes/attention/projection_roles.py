"""What the queries, keys and values of a module are in its attention: by what changes with one token of each.

In the scores of a softmax over keys one token of the queries changes a row, one of the keys a column, and one of the
values nothing. What lies between a projection and the scores, views, norms, rotations, repeats, needs no following.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.projection_names import ROLES, Projections, Role, named_projections
from nsa_doctor.probes.attention.score_watch import MASKED, SOFTMAX
from nsa_doctor.probes.attention.weighed_axes import weighings
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of, part_at, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_FEWEST_TOKENS = 6
_SEVERAL = 3  # of the keys of a query, and of the queries of a key
_ROUNDINGS = 1e5

Line = tuple[str, int]


@dataclass(frozen=True)
class PlayedRoles:
    """What the projection of each name is in the attention of `projections.holder`, and where scores are taken."""

    projections: Projections
    played: Mapping[Role, Role]
    place: Place

    @property
    def is_as_named(self) -> bool:
        """Whether queries are queries, keys keys and values values."""
        return all(name == role for name, role in self.played.items())


def played_roles(sp: BuiltModule, x: Tensor) -> Iterator[PlayedRoles]:
    """Of one module of each class that holds such projections and runs a softmax, where they are clear."""
    modules = dict(sp.module.named_modules(remove_duplicate=False))
    found = {
        (type(modules[each.holder]), each.holder.rpartition(".")[2].strip("0123456789")): each
        for each in _projections(sp)
    }
    if not found:
        return
    with _taken_apart():
        plain = _plain_lines(sp, x)
        for each in found.values():
            played = _played(sp, x, each, plain) if plain else None
            if played is not None:
                yield played


def _projections(sp: BuiltModule) -> list[Projections]:
    """The last first: of two that are alike the first is kept."""
    return named_projections(sp.module)[::-1]


@contextmanager
def _taken_apart() -> Iterator[None]:
    """A region in which attention runs operation by operation."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


def _plain_lines(sp: BuiltModule, x: Tensor) -> set[Line]:
    """Where weights are summed with values over the axis that their softmax normalises over, and are left as they are.

    Slots normalise over queries, and divide by the sums over keys.
    """
    every = [((each.place.file, each.place.line), each) for each in weighings(sp, x)]
    wrong = {line for line, each in every if each.is_wrong}
    return {line for line, each in every if each.is_right and not each.is_left} - wrong


def _played(sp: BuiltModule, x: Tensor, projections: Projections, plain: set[Line]) -> PlayedRoles | None:
    """What is clear of the first call of the holder, or of what holds it where only its methods are called."""
    for path in dict.fromkeys((projections.holder, projections.holder.rpartition(".")[0])):
        before = _watched(sp, x, path, projections.memory, None)
        if before.softmaxes and set(before.moved) == set(ROLES):
            break
    else:
        return None
    passes = {role: _watched(sp, x, path, projections.memory, role) for role in ROLES}
    if any(not each.is_like(before) for each in passes.values()):
        return None
    by_pattern = _patterns(before, passes, plain)
    if by_pattern is None:
        return None
    query, key = by_pattern["row"], by_pattern["column"]
    (value,) = set(ROLES) - {query, key}
    if not before.spreads_to(passes[value], before.moved[value]):
        return None
    place = _met(before, passes[query], passes[key])
    played: dict[Role, Role] = {query: "query", key: "key", value: "value"}
    return PlayedRoles(projections, {role: played[role] for role in ROLES}, replace(place, module=projections.holder))


def _patterns(before: "_Pass", passes: Mapping[Role, "_Pass"], plain: set[Line]) -> dict[str, Role] | None:
    """Whose tokens are rows and whose columns of scores, if it is the same in all of them; None otherwise."""
    seen: dict[Role, set[str]] = {role: set() for role in ROLES}
    is_met = False
    for number, softmax in enumerate(before.softmaxes):
        if sum(size >= _SEVERAL for size in softmax.scores.shape) < 2:
            continue  # the last few of many queries, say
        moved = {role: _Moved.between(softmax, each.softmaxes[number]) for role, each in passes.items()}
        if not any(each.is_any for each in moved.values()):
            continue
        if (softmax.place.file, softmax.place.line) not in plain:
            return None
        for role, each in moved.items():
            seen[role] |= {each.pattern} if each.is_any else set()
        is_met = is_met or any(_Moved.meet(one, other) for one in moved.values() for other in moved.values())
    if not is_met or any(len(patterns) > 1 for patterns in seen.values()):
        return None
    clear = {next(iter(patterns)): role for role, patterns in seen.items() if patterns}
    is_clear = set(clear) == {"row", "column"} and sum(map(len, seen.values())) == len(clear)
    return clear if is_clear else None


@dataclass(frozen=True)
class _Moved:
    """How many places along each axis of scores have changed entries."""

    axis: int
    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def between(cls, one: "_Softmax", other: "_Softmax") -> "_Moved":
        """The scores of one softmax in two passes."""
        is_hidden = (one.scores <= MASKED) | (other.scores <= MASKED)
        apart = (one.scores - other.scores).masked_fill(is_hidden, 0.0).abs()
        size = float(one.scores.masked_fill(is_hidden, 0.0).abs().max())
        places = (apart > _ROUNDINGS * torch.finfo(apart.dtype).eps * size).nonzero()
        counts = tuple(len(places[:, axis].unique()) for axis in range(apart.ndim))
        return cls(one.axis, tuple(apart.shape), counts)

    @property
    def is_any(self) -> bool:
        return any(self.counts)

    @property
    def pattern(self) -> Literal["row", "column", "other"]:
        """One row, over several keys; one key, in several rows; or something else."""
        if self.counts[self.axis] == 1 and any(self._is_several(axis) for axis in self._others()):
            return "column"
        is_row = self._is_several(self.axis) and any(self._is_one(axis) for axis in self._others())
        return "row" if is_row else "other"

    def meet(self, other: "_Moved") -> bool:
        """Whether it is one row and the other one column along the same axis."""
        rows = [axis for axis in self._others() if self._is_one(axis) and other._is_several(axis)]
        return bool(rows) and self._is_several(self.axis) and other.counts[self.axis] == 1

    def _others(self) -> list[int]:
        return [axis for axis in range(len(self.sizes)) if axis != self.axis]

    def _is_one(self, axis: int) -> bool:
        return self.counts[axis] == 1 and self.sizes[axis] >= _SEVERAL

    def _is_several(self, axis: int) -> bool:
        return self.counts[axis] >= _SEVERAL


@dataclass(frozen=True)
class _Softmax:
    scores: Tensor
    axis: int
    place: Place


@dataclass
class _Pass:
    """What is seen of one call: softmaxes, products, the output, and of how many tokens each role has projections."""

    softmaxes: list[_Softmax] = field(default_factory=list)
    products: list[tuple[Tensor, Place]] = field(default_factory=list)
    moved: dict[Role, int] = field(default_factory=dict)
    output: Tensor | None = None

    def is_like(self, other: "_Pass") -> bool:
        """Whether the same was done."""
        pairs = zip(self.products, other.products, strict=False)
        return (
            len(self.products) == len(other.products)
            and all(one.shape == another.shape for (one, _), (another, _) in pairs)
            and [each.scores.shape for each in self.softmaxes] == [each.scores.shape for each in other.softmaxes]
        )

    def spreads_to(self, other: "_Pass", num_tokens: int) -> bool:
        """Whether its output differs for more than the token that does."""
        if self.output is None or other.output is None or self.output.shape != other.output.shape:
            return False
        share = float((self.output != other.output).double().mean())
        return share * num_tokens >= _SEVERAL - 1


def _met(before: _Pass, *others: _Pass) -> Place:
    """The first product that changes with each, or the first softmax."""
    for number, (result, place) in enumerate(before.products):
        if all(not torch.equal(result, each.products[number][0]) for each in others):
            return place
    return before.softmaxes[0].place


def _watched(sp: BuiltModule, x: Tensor, path: str, memory: Mapping[int, Role], moved: Role | None) -> _Pass:
    """One pass, and what was done in the first call of the module there; one token of a role is another."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, memory, moved)
    with torch.no_grad(), places.watching(), watch.during(part_at(sp.module, path)), watch:
        sp(x)
    return watch.seen


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, memory: Mapping[int, Role], moved: Role | None) -> None:
        super().__init__()
        self.seen = _Pass()
        self._places, self._memory, self._moved = places, dict(memory), moved
        self._is_open, self._is_over = False, False
        self._multiplied = set[int]()
        self._alive: list[Tensor] = []  # or its memory would be given to another tensor

    @contextmanager
    def during(self, module: nn.Module) -> Iterator[None]:
        """Watch the first call of a module."""

        def enter(*_given: object) -> None:
            self._is_open = not self._is_over

        def leave(_module: nn.Module, _args: object, output: object) -> None:
            if self._is_open:
                made = [each for each in tensors_in(output) if each.is_floating_point()]
                self.seen.output = made[0].detach().clone() if made else None
            self._is_open, self._is_over = False, True

        handles = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and change a token of its result where it projects what is to change."""
        result, name = func(*args, **kwargs), operation_name(func)
        given = tensors_in(args, kwargs)
        roles = [self._memory.get(memory_of(each)) for each in given]
        if not self._is_open or not isinstance(result, Tensor):
            return result
        if name in SOFTMAX and result.ndim > 1:
            place = self._places.here()[0]
            self.seen.softmaxes.append(_Softmax(args[0].detach().clone(), int(args[1]) % result.ndim, place))
        elif name in _PRODUCTS or name == "convolution":
            with untraced():
                result = self._project(name, args, result)
            if name in _PRODUCTS:
                self.seen.products.append((result.detach().clone(), self._places.here()[0]))
        elif roles and roles[0] is not None and all(role == roles[0] for role in roles):
            self._memory[memory_of(result)] = roles[0]  # the same weights, laid out or cast otherwise
            self._alive.append(result)
        return result

    def _project(self, name: str, args: tuple[Any, ...], result: Tensor) -> Tensor:
        """What the first product with each weight gives, one token of it another where its role is to change."""
        left, right = args[:2] if name == "convolution" else args[-2:]
        weights = [each for each in (left, right) if self._memory.get(memory_of(each)) is not None]
        if len(weights) != 1 or memory_of(weights[0]) in self._multiplied:
            return result
        role = self._memory[memory_of(weights[0])]
        self._multiplied.add(memory_of(weights[0]))
        if name == "convolution":
            tokens = result.flatten(2).movedim(2, 0)
        else:
            tokens = result.movedim(-2 if weights[0] is right else -1, 0)
        if len(tokens) < _FEWEST_TOKENS:
            return result
        self.seen.moved[role] = len(tokens)
        if role != self._moved:
            return result
        other, number = tokens.clone(), len(tokens) // 3
        noise = torch.randn(other[number].shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        other[number] += noise.to(other) * tokens.std()
        if name == "convolution":
            return other.movedim(0, 2).reshape(result.shape)
        return other.movedim(0, -2 if weights[0] is right else -1).contiguous()
