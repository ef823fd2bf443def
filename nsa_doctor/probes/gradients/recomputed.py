"""Gradients with what activation checkpointing computes again, against those with everything kept."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.askings import Gradients, described, differing, gradients
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import recomputing_where
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.precision import finest_precision

_MOST_CALLS = 8  # of checkpoint that are tried one by one
_LENGTH = 17


@dataclass(frozen=True)
class Departure:
    """Which calls of checkpoint change gradients, how, and where the first of them stands."""

    words: str
    place: Place
    num_parameters: int


class Recomputation:
    """One module in training mode and one input, differentiated with some calls of checkpoint in force."""

    def __init__(self, sp: BuiltModule, length: int, rows: int) -> None:
        self._sp, self._x = sp, sp.input(length, rows)
        self._places = Places(FrameFilter(sp.subject.packages))
        self._places.know(sp.module)
        self._eps = finest_precision(sp, self._x[:, :_LENGTH]).eps
        self._cotangent = self._drawn()

    def calls(self) -> list[Place]:
        """The lines that ask for recomputation in one forward pass, in the order they run."""
        found: list[Place] = []

        def note() -> bool:
            found.append(self._places.here()[0])
            return False

        with self._places.watching(), recomputing_where(note), torch.enable_grad():
            self._sp(self._x)
        return found

    def departure(self, calls: list[Place]) -> Departure | None:
        """How gradients depart where all of it is computed again, if without it two passes give the same."""
        kept, again = self._gradients(()), self._gradients(())
        if kept is None or again is None or self._differing(again, kept):
            return None
        if (every := self._gradients(range(len(calls)))) is None or not self._differing(every, kept):
            return None
        for number, place in list(enumerate(calls))[:_MOST_CALLS]:
            alone = self._gradients((number,))
            if alone is not None and (names := self._differing(alone, kept)):
                return Departure(described(alone, kept, names), place, len(names))
        names = self._differing(every, kept)
        return Departure(described(every, kept, names), calls[0], len(names))

    def _differing(self, found: Gradients, kept: Gradients) -> list[str]:
        return differing(found, kept, self._eps)

    def _gradients(self, wanted: range | tuple[int, ...]) -> Gradients | None:
        """Of the parameters, the calls of these numbers computing again and the others keeping what they computed."""
        numbers: Iterator[int] = iter(range(1 << 30))
        with unobserved(), recomputing_where(lambda: next(numbers) in wanted):
            return gradients(self._sp, self._x, self._cotangent)

    def _drawn(self) -> Tensor:
        with torch.no_grad():
            shape = self._sp(self._x).shape
        generator = torch.Generator().manual_seed(self._sp.subject.seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)
