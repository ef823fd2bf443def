"""Pairs of a subject's own functions of which one is to undo the other, and that do not give back what was given."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.inverse_names import OVERLAPPING, Role
from nsa_doctor.probes.hooks.own_calls import OwnCall, own_calls
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.numerics.undone import (
    Sources,
    Watched,
    handed_from,
    has_other_counts,
    is_laid_out_wrongly,
    mixes_axes,
    moves_along_axes,
    places_later,
    places_of,
    reads_more,
    rebuilt,
    watched,
)

_CLEAR, _CLEAR_IN_HALF = 0.05, 0.3  # of the spread of what was given: an epsilon beside a variance is no fault
_STRETCH, _AWAY = 1.7, 0.9
_ROWS = 2
_FREE = re.compile(  # what may be any number, unlike a table of sines
    r"(^|_)(means?|mu|loc|shift|bias|beta|offset|stds?|stdev|sigma|sd|scale|gain|weight|gamma|alpha|affine)(_|$)",
    re.IGNORECASE,
)
_MOST_OF_A_KIND = 3


@dataclass(frozen=True)
class NotRestored:
    """Two functions by name, how much of what the first was given does not come back, and the likely line."""

    first: str
    second: str
    text: str
    difference: float
    place: Place


@dataclass(frozen=True)
class _Trial:
    """One call of each, and what came of them: 0 where what was given comes back."""

    first: OwnCall
    second: OwnCall
    difference: float
    is_layout: bool
    moved: int = 0  # by how many places


_Pair = tuple[tuple[Any, ...], Any, str, str]


def not_restored(sp: BuiltModule, length: int) -> Iterator[NotRestored]:
    """The pairs that a pass calls and of which no two calls fit together, with two inputs each; one of a kind."""
    seed = sp.subject.seed
    passes = [_pairs(sp, length, each) for each in (seed, seed + 1)]
    tried: Counter[tuple[Any, ...]] = Counter()
    for key, (firsts, seconds) in passes[0].items():
        kind = firsts[0].code, seconds[0].code, *key[2:]
        tried[kind] += 1
        if tried[kind] > _MOST_OF_A_KIND or key not in passes[1]:
            continue
        with unobserved():
            trial = _least(sp, firsts, seconds, adds=key[1])
            is_again = trial is not None and _least(sp, *passes[1][key], adds=key[1]) is not None
            found = _worded(sp, trial) if trial is not None and is_again else None
        if found is not None:
            tried[kind] = _MOST_OF_A_KIND
            yield found


def _pairs(sp: BuiltModule, length: int, seed: int) -> dict[_Pair, tuple[list[OwnCall], list[OwnCall]]]:
    """The calls of each pair in a pass."""
    with torch.no_grad(), own_calls(FrameFilter(sp.subject.packages)) as calls:
        sp(sp.input(length, _ROWS, seed))
    found: dict[_Pair, tuple[list[OwnCall], list[OwnCall]]] = {}
    for number, one in enumerate(calls):
        for other in calls[number + 1 :]:
            is_mode = one.is_mode or other.is_mode
            if one.owner != other.owner or one.name == other.name or (is_mode and one.code is not other.code):
                continue
            for role in one.roles:
                if replace(role, undoes=not role.undoes) not in other.roles or (role.undoes and role.adds):
                    continue
                firsts, seconds = found.setdefault((one.owner, role.adds, one.name, other.name), ([], []))
                firsts += [one] if all(each is not one for each in firsts) else []
                seconds += [other] if all(each is not other for each in seconds) else []
    return found


def _least(sp: BuiltModule, firsts: list[OwnCall], seconds: list[OwnCall], *, adds: bool) -> _Trial | None:
    """The trial that comes nearest to what was given, of all calls that fit together; None where one gives it back."""
    trials: list[_Trial] = []
    frames, state = FrameFilter(sp.subject.packages), ModuleState(sp.module, with_parameters=True)
    for first in firsts:
        for second in seconds:
            pair = _TwoCalls(first, second, frames, state, sp.subject.seed)
            trial = attempt(lambda pair=pair: pair.tried(adds=adds))
            state.restore()
            if isinstance(trial, _Trial):
                trials.append(trial)
                if not trial.difference:
                    return None
    nearest = min(trials, key=lambda each: each.difference, default=None)
    return nearest if nearest is not None and nearest.difference > 0 else None


class _TwoCalls:
    """A call of each, made one after the other as often as asked for."""

    def __init__(self, first: OwnCall, second: OwnCall, frames: FrameFilter, state: ModuleState, seed: int) -> None:
        self._first, self._second = first, second
        self._frames, self._state, self._seed = frames, state, seed
        self._sources: Sources = {}

    def tried(self, *, adds: bool) -> _Trial | None:
        """What comes back; None where the second does not fit the first, or one of them may lose something."""
        first, second = self._first, self._second
        given = watched(first, self._frames)
        if given.y is None or given.y.shape != second.x.shape or given.y.dtype != second.x.dtype:
            return None
        sources = handed_from(first, given, second)
        if sources is None:
            return None
        self._sources = sources
        back = self._undone(given, first)
        overlaps = Role(OVERLAPPING, undoes=True) in second.roles
        if back.y is None or back.y.shape != first.x.shape:
            return None
        if not (overlaps or (given.is_arithmetic and back.is_arithmetic)) or not self._is_steady(back.y):
            return None
        if overlaps:
            moved = places_later(first.x, back.y)
            return _Trial(first, second, float(moved != 0), is_layout=False, moved=moved)
        if given.is_layout and back.is_layout:
            share = is_laid_out_wrongly(first.x, given.y, back.y)
            is_moved = share > 0 and given.y.shape != first.x.shape and self._is_moved_along_axes()
            return _Trial(first, second, 0.0 if is_moved else share, is_layout=True)
        if not adds or has_other_counts(first, second) or reads_more(second, given.names, back.names):
            return None
        return self._computed()

    def _undone(self, given: Watched, first: OwnCall) -> Watched:
        """What the second makes of what the first gave."""
        changed: dict[str, Any] = {self._second.first: given.y}
        for name, (kind, source) in self._sources.items():
            own = self._second.arguments[name]
            if kind == "answers":
                changed[name] = rebuilt(own, iter([given.beside[place] for place in source]))
                continue
            value = first.arguments[source] if kind == "argument" else given.beside[source]
            changed[name] = value.reshape(own.shape) if isinstance(own, Tensor) else value
        return watched(self._second.given(changed), self._frames)

    def _is_steady(self, back: Tensor) -> bool:
        """Whether both answer the same again."""
        self._state.restore()
        again = self._undone(watched(self._first, self._frames), self._first).y
        return again is not None and torch.equal(again, back)

    def _is_moved_along_axes(self) -> bool:
        """Whether the second does more than to lay out, by design: it rolls back what the caller has rolled."""
        self._state.restore()
        places = self._first.given({self._first.first: places_of(self._first.x)})
        back = self._undone(watched(places, self._frames), places).y
        return back is not None and moves_along_axes(places.x, back)

    def _computed(self) -> _Trial | None:
        """What is left of values with weights that are none of 0 and 1, and of those that the pass gave."""
        found: list[float] = []
        for first in (self._stretched, self._first):
            self._state.restore()
            call = first() if callable(first) else first
            given = watched(call, self._frames)
            back = self._undone(given, call)
            if given.y is None or back.y is None or back.y.shape != call.x.shape:
                continue
            is_finite = bool(given.y.isfinite().all()) and bool(back.y.isfinite().all())
            if is_finite and int((given.y != 0).sum()) >= int((call.x != 0).sum()):
                found.append(_strays(call.x, back.y))
        if not found:
            return None
        clear = _CLEAR if self._first.x.dtype in (torch.float32, torch.float64) else _CLEAR_IN_HALF
        return _Trial(self._first, self._second, max(found) if max(found) > clear else 0.0, is_layout=False)

    def _stretched(self) -> OwnCall:
        """The first with larger values around another mean, and with other weights and statistics."""
        first, generator = self._first, torch.Generator().manual_seed(self._seed + 31)
        if isinstance(first.holder, nn.Module):
            held = [*first.holder.named_parameters(recurse=False), *first.holder.named_buffers(recurse=False)]
            with torch.no_grad():
                for name, tensor in held:
                    tensor.copy_(_moved(name, tensor, generator))
        size = float(first.x.std()) or 1.0
        used = sorted({source for kind, source in self._sources.values() if kind == "argument"})
        given = {name: first.arguments[name] for name in used}
        moved = {name: _moved(name, each, generator) for name, each in given.items() if isinstance(each, Tensor)}
        return first.given({first.first: first.x * (_STRETCH / size) + _AWAY, **moved})


def _moved(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Positive values times up to three, others away from where they are; what may not be any number stays."""
    if not tensor.is_floating_point() or not _FREE.search(name):
        return tensor
    drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
    return tensor * 4.0 ** (drawn - 0.3) if bool((tensor > 0).all()) else tensor + 2 * drawn - 0.5


def _strays(x: Tensor, back: Tensor) -> float:
    """How far what came back is from what was given, in units of its spread."""
    size = x.double().std() if x.numel() > 1 else x.double().abs().max()
    return float((back.double() - x.double()).square().mean().sqrt() / size.clamp_min(1e-30))


def _worded(sp: BuiltModule, trial: _Trial) -> NotRestored:
    first, second = trial.first, trial.second
    shape = list(first.x.shape)
    blamed = second
    if trial.moved:
        places = "1 place" if abs(trial.moved) == 1 else f"{abs(trial.moved)} places"
        text = f"a tensor {shape} comes back {places} {'later' if trial.moved > 0 else 'earlier'}"
    elif trial.is_layout:
        text = f"{trial.difference:.0%} of the values of a tensor {shape} come back at other places"
        is_first = attempt(lambda: mixes_axes(first))
        is_second = attempt(lambda: mixes_axes(second))
        if is_first is True and is_second is not True:
            blamed = first
        if True in (is_first, is_second):
            text += f": {blamed.name} takes places of one axis for those of another"
    else:
        text = f"values of a tensor {shape} come back changed by {trial.difference:.0%} of their spread"
    place = _line_of(sp, blamed)
    return NotRestored(first.name, second.name, text, trial.difference, place)


def _line_of(sp: BuiltModule, call: OwnCall) -> Place:
    """The line that makes its answer; where it is defined, if none is seen."""

    def run() -> Tensor:
        answer = call.again()
        return answer if isinstance(answer, Tensor) else next(each for each in answer if isinstance(each, Tensor))

    recorded = attempt(lambda: recording_of(sp, run))
    place = Place()
    if not isinstance(recorded, Caught) and recorded.output_maker >= 0:
        place = recorded.operations[recorded.output_maker].place
    return (
        place
        if place.file
        else Place(file=call.code.co_filename, line=call.code.co_firstlineno, function=call.code.co_name)
    )
