"""Whether a gradient stops where a recurrent state is detached at regular intervals: truncated backpropagation."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.derivative import Agreement
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.meant_cuts import attached
from nsa_doctor.probes.hooks.flow import Event
from nsa_doctor.probes.internal import part_at

_DETACHING = ("detach", "detach_", "data")
_LEAST_INTERVAL = 2  # detached at every token, a state hands no gradient back at all
_SAID = re.compile(r"truncat|bptt|detach_every", re.IGNORECASE)


@dataclass(frozen=True)
class Truncation:
    """How often the state is detached in so many tokens; whether the source of its module says that it is meant."""

    num_detaches: int
    num_tokens: int
    is_documented: bool

    def __str__(self) -> str:
        says = "its source says so" if self.is_documented else "nothing in its source says so"
        return (
            f"right but for a state detached {self.num_detaches} times in {self.num_tokens} tokens, as backpropagation "
            f"through time is truncated: {says}"
        )


def truncation(make: Callable[[int], DerivativeProbe], length: int, place: Place) -> Truncation | None:
    """What is known of a detach on that line, if the gradient is right but for it; None where it is not so.

    It has to recur as the input grows, and each state detached to come of the one before: what is cut is the way back
    through time, and no path as a whole.
    """
    try:
        probe = make(2 * length)
        fewer, detaches = _Passed.through(make(length), place), _Passed.through(probe, place)
        further = len(detaches.numbers) - len(fewer.numbers)
        if not fewer.numbers or not 1 <= further <= length / _LEAST_INTERVAL or not _is_handed_on(detaches):
            return None
        with attached([place]):
            agreement = probe.agreement((0, 1))
    except (NotComparableError, SubjectFailedError):  # longer inputs need not be served
        return None
    if agreement is not Agreement.AGREES:
        return None
    kind = type(part_at(probe.built.module, place.module))
    source = attempt(lambda: inspect.getsource(kind))
    return Truncation(len(detaches.numbers), 2 * length, isinstance(source, str) and bool(_SAID.search(source)))


@dataclass(frozen=True)
class _Passed:
    """The calls of a pass, and the numbers of those that detach on the line in question."""

    events: Sequence[Event]
    numbers: Sequence[int]

    @classmethod
    def through(cls, probe: DerivativeProbe, place: Place) -> "_Passed":
        """Run once."""
        events = probe.differentiate(0, is_followed=True).recording.events
        return cls(events, [number for number, each in enumerate(events) if _is_cut(each, place)])


def _is_cut(event: Event, place: Place) -> bool:
    is_there = (event.place.file, event.place.line) == (place.file, place.line)
    return is_there and event.loses_gradient and event.name in _DETACHING


def _is_handed_on(passed: _Passed) -> bool:
    """Whether what is detached is each time another tensor, computed from what was detached before."""
    for first, second in pairwise(passed.numbers):
        before, after = passed.events[first], passed.events[second]
        reach = set(before.writes)
        for event in passed.events[first + 1 : second]:
            if event.reads & reach:
                reach |= event.writes
        if before.reads & after.reads or not after.reads & reach:
            return False
    return len(passed.numbers) > 1
