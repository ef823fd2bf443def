"""Counts the lines of plain Python that a pass runs through, which no operation of torch shows."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.growth import least_exponent
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.cost.work import usual_mode
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_BETWEEN = 1.5  # a loop over tokens has an exponent of one, a loop over their pairs of two


@dataclass(frozen=True)
class PythonLoop:
    """A line that runs for each pair of tokens, or more often: how often at the lengths that were tried."""

    place: Place
    lengths: tuple[int, ...]
    counts: tuple[int, ...]


def loops_over_pairs(subject: Subject, lengths: tuple[int, ...], least_per_pair: float) -> list[PythonLoop]:
    """Lines that run at least so often for each further pair of tokens, the most frequent first.

    What is counted is the second call at each length: tables that are built once and kept cost nothing after. Nothing
    is said of a subject that does not serve all of the three lengths.
    """
    if lengths[-1] > subject.max_length:
        return []
    sp = built(subject, mode="train" if usual_mode(subject) == "train" else "eval")
    counter = _Counter(sp.subject.packages)
    counter.know(sp.module)
    counts: list[Counter[tuple[CodeType, int]]] = []
    for length in lengths:
        x = sp.input(length)
        with torch.set_grad_enabled(usual_mode(subject) != "no_grad"), uncompiled():
            sp(x)
            with counter.counting() as lines:
                sp(x)
        counts.append(lines)
    further = (lengths[-1] ** 2 - lengths[-2] ** 2) / 2
    found = []
    for key, most in counts[-1].most_common():
        amounts = tuple(each[key] for each in counts)
        if most - amounts[-2] >= least_per_pair * further and least_exponent(lengths, amounts) > _BETWEEN:
            found.append(PythonLoop(counter.place_of(*key), lengths, amounts))
    return found


class _Counter:
    """Counts by line of the subject's own code; a trace function is Python's way to do so."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._frames, self._places = FrameFilter(packages), Places(FrameFilter(packages))
        self._own: dict[CodeType, bool] = {}
        self._seen: dict[tuple[CodeType, int], Place] = {}
        self._lines: Counter[tuple[CodeType, int]] = Counter()

    def know(self, module: torch.nn.Module) -> None:
        """Learn the names of the subject's modules."""
        self._places.know(module)

    def place_of(self, code: CodeType, line: int) -> Place:
        """Where a line that ran stands."""
        return self._seen[code, line]

    @contextmanager
    def counting(self) -> Iterator[Counter[tuple[CodeType, int]]]:
        """Count until the region ends."""
        self._lines = Counter()
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield self._lines
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._own:
            self._own[code] = self._frames.rank_of(code) == 3
        return self._ran if self._own[code] else None

    def _ran(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        if event == "line":
            key = (frame.f_code, frame.f_lineno)
            self._lines[key] += 1
            if key not in self._seen:
                self._seen[key] = self._places.of_frame(frame) or Place()
        return self._ran
