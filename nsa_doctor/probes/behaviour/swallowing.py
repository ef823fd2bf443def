"""Ordinary calls of a subject with the exceptions it swallowed in each, and what became of those calls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.lengths import spread_lengths
from nsa_doctor.probes.attention.agreement import gradients, plain_output
from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.swallowed import Site, Swallowed, swallowed_exceptions
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.fallbacks import Signs, signs_of_fallbacks
from nsa_doctor.probes.model.flagged import OperationCounter
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject

_LONGEST, _NUM_LENGTHS, _BATCH, _NUM_DECODED = 260, 8, 3, 3
_BUILDING = "while it is built"
_TIMES, _LEAST_MORE = 4, 100  # as many operations for as many tokens, and so many at least


@dataclass(frozen=True, kw_only=True)
class WatchedCall:
    """One call; `x` and `output` of one that can be compared with others.

    They are None of what is built, trained or decoded, and of a first call at which something is swallowed that is not
    at the second: what is made once and kept is asked for in this way.
    """

    words: str
    swallowed: tuple[Swallowed, ...]
    num_operations: int
    x: Tensor | None
    output: Tensor | None

    @property
    def sites(self) -> frozenset[Site]:
        """Where something was swallowed."""
        return frozenset(each.site for each in self.swallowed)


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """What a call in which something was swallowed does differently from one in which nothing was, in words."""

    call: WatchedCall
    words: str


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What was seen in all calls."""

    sp: BuiltModule
    calls: tuple[WatchedCall, ...]
    signs: Signs

    def sites(self) -> dict[Site, Swallowed]:
        """Every place something was swallowed at, with the first exception there."""
        found: dict[Site, Swallowed] = {}
        for call in self.calls:
            for each in call.swallowed:
                found.setdefault(each.site, each)
        return found

    def consequence(self, site: Site) -> Consequence | None:
        """What is different where something was swallowed there; None where nothing is, or nothing can be compared."""
        made = [call for call in self.calls if call.output is not None]
        for call in (call for call in made if site in call.sites):
            others = [other for other in made if call.sites ^ other.sites == {site}]
            others.sort(key=lambda other: abs(_length(other) - _length(call)))
            if words := next((words for other in others if (words := self._difference(call, other))), ""):
                return Consequence(call=call, words=words)
        return None

    def is_of_building(self, site: Site) -> bool:
        """Whether it is swallowed while the subject is built, and in no forward pass."""
        calls = [call for call in self.calls if site in call.sites]
        return any(call.words == _BUILDING for call in calls) and all(call.x is None for call in calls)

    def when(self, site: Site) -> str:
        """`in every call`, or in which."""
        calls = [call for call in self.calls if site in call.sites]
        compared = [call for call in self.calls if call.output is not None]
        if all(site in call.sites for call in compared):
            return "in every call"
        words = [call.words for call in calls]
        return ", ".join(words[:3]) + (f" and in {len(words) - 3} calls more" if len(words) > 3 else "")

    def _difference(self, call: WatchedCall, other: WatchedCall) -> str:
        allowed = _TIMES * max(1.0, _length(call) / _length(other)) * other.num_operations
        if call.num_operations > max(allowed, other.num_operations + _LEAST_MORE):
            return f"it starts {call.num_operations:,} operations, and {other.num_operations:,} {other.words}"
        departure = self._departure(call, other) if self._is_consistent else None
        return "" if departure is None else f"its output is not that {other.words}: {departure.text}"

    @cached_property
    def _is_consistent(self) -> bool:
        """Whether calls that swallow the same agree with each other, and with themselves when they are made again.

        Where they do not, length, batch or what came before explains a difference, and no exception has to.
        """
        made = [call for call in self.calls if call.output is not None]
        alike: dict[frozenset[Site], list[WatchedCall]] = {}
        for call in made:
            alike.setdefault(call.sites, []).append(call)
        pairs = [pair for calls in alike.values() for pair in pairwise(calls)]
        return all(
            self._departure(*pair) is None for pair in (*pairs, *((call, self._again(call)) for call in made[:2]))
        )

    def _again(self, call: WatchedCall) -> WatchedCall:
        assert call.x is not None
        with torch.no_grad():
            return replace(call, output=self.sp.call(call.x.clone(memory_format=torch.preserve_format)).clone())

    def _departure(self, call: WatchedCall, other: WatchedCall) -> Departure | None:
        """How the two depart from each other in the tokens of the first row that both have."""
        longer, shorter = (call, other) if _length(call) >= _length(other) else (other, call)
        if "bidirectional" in self.sp.subject.spec and _length(call) != _length(other):
            return None
        assert longer.x is not None
        assert longer.output is not None
        assert shorter.output is not None
        try:
            whole = baseline(self.sp, longer.x[:1])
        except (NotComparableError, SubjectFailedError):
            return None
        whole.output = longer.output[:1]
        return whole.departure(shorter.output[:1], tokens=slice(_length(shorter)))


def watch_calls(subject: Subject) -> Watched:
    """Build the subject and call it in ordinary ways; calls that raise are left to the checks that look at those."""
    sp = built(subject)
    watcher = _Watcher(sp)
    calls: list[WatchedCall] = []
    with signs_of_fallbacks(subject.packages, sp.module) as signs:
        for words, x, call in _plan(sp):
            first = watcher.watch(words, x, call)
            again = first if x is None else watcher.watch(words, x, call)
            if first is not None and again is not None:
                calls.append(again)
                once = tuple(each for each in first.swallowed if each.site not in again.sites)
                if once:
                    calls.append(replace(first, words=f"{words} at first", swallowed=once, x=None, output=None))
    return Watched(sp=sp, calls=tuple(calls), signs=signs)


class _Watcher:
    def __init__(self, sp: BuiltModule) -> None:
        self._frames = FrameFilter(sp.subject.packages)
        self._places = Places(self._frames)
        self._places.know(sp.module)

    def watch(self, words: str, x: Tensor | None, call: Callable[[], Tensor | None]) -> WatchedCall | None:
        """Make the call; None when it does not come to its end."""
        is_own = lambda code: self._frames.rank_of(code) == 3  # noqa: E731
        swallowing = swallowed_exceptions(is_own, self._places.of_frame)
        with OperationCounter() as counter, self._places.watching(), swallowing as swallowed:
            try:
                output = call()
            except (SubjectFailedError, NotComparableError):
                return None
        return WatchedCall(words=words, swallowed=tuple(swallowed), num_operations=counter.count, x=x, output=output)


_Planned = tuple[str, Tensor | None, Callable[[], Tensor | None]]


def _plan(sp: BuiltModule) -> Iterator[_Planned]:
    subject = sp.subject
    longest = min(subject.max_length, _LONGEST)
    lengths = sorted({1, longest, *spread_lengths(subject.geometry, longest, _NUM_LENGTHS)})
    middle, x = lengths[len(lengths) // 2], sp.input(longest, _BATCH)
    yield _BUILDING, None, lambda: _nothing(subject.build(subject.seed))
    for length in lengths:
        yield _forward(sp, f"at S={length}", x[:1, :length])
    yield _forward(sp, f"at S={middle} with {_BATCH} rows", x[:, :middle])
    if x.is_floating_point():
        yield _forward(sp, f"at S={middle} on transposed memory", x[:1, :middle].mT.contiguous().mT)
    if "train" in subject.modes:
        yield "in training", None, lambda: _trained(subject, middle)
    if subject.offers("prefill") and subject.offers("step"):
        yield "in decoding", None, lambda: _decoded(sp, x[:1, :middle])


def _forward(sp: BuiltModule, words: str, x: Tensor) -> _Planned:
    def call() -> Tensor:
        with torch.no_grad():
            return sp.call(x.clone(memory_format=torch.preserve_format)).clone()

    return words, x, call


def _trained(subject: Subject, length: int) -> None:
    trained = built(subject, mode="train")
    gradients(trained, plain_output(subject), trained.input(length, 2))


def _decoded(sp: BuiltModule, x: Tensor) -> None:
    steps = min(_NUM_DECODED, x.shape[1] - 1)
    decode(sp, x, [x.shape[1] - steps, *[1] * steps])


def _nothing(_module: object) -> None:
    """For what is made and not compared."""


def _length(call: WatchedCall) -> int:
    assert call.x is not None
    return call.x.shape[1]
