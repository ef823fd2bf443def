"""The frequencies of positions of which a module takes sines, in being built and in a pass: how far each turns a token.

They form a ladder, from about a radian for each token down to one turn in tens of thousands (arXiv 1706.03762, section
3.5; arXiv 2104.09864, equation 15).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in
from nsa_doctor.subject.contract import Subject

_TURNS = frozenset({"sin", "cos", "polar"})
_FEWEST_TOKENS, _MOST_TOKENS = 8, 64
_FEWEST = 4  # of a ladder: fewer may stand in any proportion
_EVEN = 1e-4  # of a step: float32 rounds angles of 64 tokens by less
_PROPORTION = 0.02  # what steps of equal size may differ by
_STEEP = ((8, 1e-2), (_FEWEST, 1e-3), (3, 1e-6))  # (rungs, a rung over the one above): a base of 1e12 is not as steep


@dataclass(frozen=True)
class Ladder:
    """Radians that each of a table's frequencies turns from a token to the next, in their order, and who made them."""

    radians: tuple[float, ...]
    place: Place

    @property
    def fault(self) -> str | None:
        """What is wrong with them, in words; None where nothing is."""
        rungs = sorted({abs(each) for each in self.radians}, reverse=True)
        if len(rungs) == 1 and len(self.radians) >= 2 * _FEWEST:
            return f"all {len(self.radians)} turn alike, by {rungs[0]:.3g} radians"
        if len(rungs) > 1 and rungs[-1] > math.pi:
            return f"each of them makes more than half a turn, by {rungs[-1]:.3g} to {rungs[0]:.3g} radians"
        if not _is_even([math.log(each) for each in rungs]):
            return None
        if len(rungs) >= _FEWEST and rungs[-1] > 1 - _EVEN and rungs[0] > math.pi:
            return (
                f"they turn by {rungs[-1]:.3g} to {rungs[0]:.3g} radians, so that the slowest comes round after "
                f"{2 * math.pi / rungs[-1]:.2g} tokens and the others turn at random"
            )
        if any(len(rungs) >= fewest and rungs[1] < least * rungs[0] for fewest, least in _STEEP):
            return f"one turns by {rungs[0]:.3g} radians and the next of {len(rungs)} by {rungs[1]:.2g}"
        return None


def _is_even(values: Sequence[float]) -> bool:
    """Whether three or more are as far from one another as the next from the next."""
    steps = [abs(one - other) for one, other in pairwise(values)]
    return len(steps) > 1 and max(steps) - min(steps) <= _PROPORTION * min(steps)


def ladders(subject: Subject, length: int) -> list[Ladder]:
    """The frequencies of every table of sines that is made where the subject is built and takes so many tokens."""
    places = Places(FrameFilter(subject.packages))
    with places.watching(), (watch := _Watch(places)):
        sp = comparable_module(subject)
    places.know(sp.module)
    with torch.no_grad(), places.watching(), watch:
        sp(sp.input(length))
    return watch.found


class _Watch(DispatchWatcher):
    """Looks at what sines are taken of, and remembers where numbers of the same kind come from."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.found: list[Ladder] = []
        self._places = places
        self._makers: dict[int, tuple[bool, Place]] = {}  # whether of powers, or of what was counted alone
        self._alive: list[Tensor] = []  # or their memory would be given to another

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note powers, what is computed of them alone, and angles."""
        result = func(*args, **kwargs)
        name = operation_name(func)
        given = tensors_in(args, kwargs)
        if name in _TURNS or (name == "exp" and given[0].is_complex()):
            self._look(given[-1].imag if given[-1].is_complex() else given[-1], given)
        elif name in ("pow", "exp", "exp2", "arange", "linspace"):
            self._keep(result, (name not in ("arange", "linspace"), self._places.here()[0]))
        else:
            known = [maker for each in given if (maker := self._makers.get(memory_of(each))) is not None]
            if known:
                self._keep(result, max(reversed(known), key=_is_of_powers))
        return result

    def _keep(self, result: Any, maker: tuple[bool, Place]) -> None:
        for each in tensors_in(result):
            self._makers[memory_of(each)] = maker
            self._alive.append(each)

    def _look(self, angles: Tensor, given: list[Tensor]) -> None:
        radians = radians_of(angles)
        if radians:
            makers = [maker for each in given if (maker := self._makers.get(memory_of(each))) is not None]
            place = max(makers, key=_is_of_powers)[1] if makers else self._places.here()[0]
            self.found.append(Ladder(radians, place))


def _is_of_powers(maker: tuple[bool, Place]) -> bool:
    return maker[0]


def _moving(rows: Tensor) -> Tensor:
    """Without what stands still before and behind: registers at position 0, distances that are cut off."""
    moves = (rows[1:] != rows[:-1]).any(1).nonzero()
    return rows[int(moves[0]) : int(moves[-1]) + 2] if len(moves) else rows


def radians_of(angles: Tensor) -> tuple[float, ...]:
    """What each column of angles grows by from a token to the next; zeros left out, and empty where one is uneven."""
    if not angles.is_floating_point() or angles.itemsize < 4:
        return ()
    for axis, size in enumerate(angles.shape):
        if size < _FEWEST_TOKENS:
            continue
        rows = _moving(angles.detach().movedim(axis, 0).reshape(size, -1))[:_MOST_TOKENS].double()
        if len(rows) < _FEWEST_TOKENS:
            continue
        steps = (rows[-1] - rows[0]) / (len(rows) - 1)
        is_even = (rows.diff(dim=0) - steps).abs().amax(0) <= _EVEN * steps.abs()
        turning = steps[steps != 0]
        if bool(is_even.all()) and len(turning) and bool(torch.isfinite(turning).all()):
            return tuple(float(each) for each in turning)
    return ()
