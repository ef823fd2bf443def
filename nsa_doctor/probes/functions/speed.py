"""How long a function takes at a length where time tells, beside dense attention of torch and its arithmetic."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.text import short_seconds
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.arithmetic import Rate, Work, backward_work, forward_work, rate, types_of
from nsa_doctor.probes.functions.clock import Clocked
from nsa_doctor.probes.functions.problems import Draw, problem_of
from nsa_doctor.probes.functions.racers import Called, Dense, Racer
from nsa_doctor.subject.function import FunctionSubject, Problem, Shape

_SHORTEST = 256
_LONGEST = {"cpu": 2048, "cuda": 4096}
_LONGEST_CACHE = 16384
_HEADS, _ROWS = {"cpu": 4, "cuda": 16}, {"cpu": 1, "cuda": 2}
_ENOUGH_SECONDS, _MOST_SECONDS = 0.2, 4.0
_FEWEST_ROUNDS, _ROUNDS, _MOST_ROUNDS = 3, 5, 12
_ENOUGH_SECONDS_OF_ALL = 2.0
_TOO_FAST = 0.5  # of the least time: no clock of a device changes by so much between two rounds


@dataclass(kw_only=True)
class Timing:
    """Seconds of the passes of one kind: the function's, as its stream sees them, and dense attention's beside them."""

    kind: str
    work: Work
    own: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    def is_below(self, reached: Rate) -> bool:
        """Whether the best pass takes far less time than its arithmetic does."""
        return min(self.own, default=torch.inf) < _TOO_FAST * reached.seconds(self.work)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What was timed, and the rate of the machine in the same rounds; `beside` names what it was timed beside.

    `called` keeps the tensors that were timed, so that no other values come to lie at their addresses.
    """

    problem: Problem
    rate: Rate
    timings: tuple[Timing, ...]
    beside: str
    called: Called


def speed(subject: FunctionSubject) -> Speed:
    """Passes in turns with those beside it and products of matrices, more of them while they seem too fast.

    Raises NotApplicableError where no long input is served in time, NotComparableError where another call raises.
    """
    problem = problem_of(subject, _timed_shape(subject), Draw(seed=60))
    timings = [Timing(kind="forward", work=forward_work(problem, subject.device))]
    if subject.has_gradients:
        timings.append(Timing(kind="backward", work=backward_work(problem, subject.device)))
    own, other, beside = Called(subject, problem), *_beside(subject, problem)
    spent, rounds = 0.0, 0
    dtype, reached = _fastest(subject)
    _passes_of(own, subject)  # loads and compiles
    is_beside = not isinstance(attempt(lambda: list(_passes(other, has_gradients=subject.has_gradients))), Caught)
    while rounds < _FEWEST_ROUNDS or (
        rounds < _MOST_ROUNDS
        and ((rounds < _ROUNDS and spent < _ENOUGH_SECONDS_OF_ALL) or any(each.is_below(reached) for each in timings))
    ):
        rounds += 1
        reached = reached.best(rate(dtype, subject.device))
        for timing, passed in zip(timings, _passes_of(own, subject), strict=False):
            timing.own.append(passed.seen)
            timing.idle.append(passed.idle)
            spent += passed.idle
        beside_it = _passes(other, has_gradients=subject.has_gradients) if is_beside else ()
        for timing, passed in zip(timings, beside_it, strict=False):
            timing.plain.append(passed.seen)
    timed = tuple(each for each in timings if each.own)
    return Speed(problem=problem, rate=reached, timings=timed, beside=beside, called=own)


def seconds_with_other_values(subject: FunctionSubject, timed: Speed, kind: str) -> float | None:
    """The best pass of that kind in seconds, each with values that it was not called with before; None for no pass.

    They lie at addresses that it was not called with before either: what keeps an answer may know it by those alone.
    """
    found = []
    draws = [problem_of(subject, timed.problem.shape, Draw(seed=seed)) for seed in range(61, 64)]
    for racer in [Called(subject, problem) for problem in draws]:
        passed = attempt(lambda racer=racer: list(_passes(racer, has_gradients=subject.has_gradients)))
        passes = [] if isinstance(passed, Caught) else passed
        found += [each.seen for name, each in zip(("forward", "backward"), passes, strict=False) if name == kind]
    return min(found, default=None)


def _passes_of(racer: Called, subject: FunctionSubject) -> list[Clocked]:
    """Those of the function; NotComparableError where one of them raises."""
    passed = attempt(lambda: list(_passes(racer, has_gradients=subject.has_gradients)))
    if isinstance(passed, Caught):
        raise NotComparableError(f"called again on the same tensors it raises {passed.sentence}")
    return passed


def _passes(racer: Racer, *, has_gradients: bool) -> Iterator[Clocked]:
    """A forward and, where there is one, its backward."""
    forward = racer.forward()
    yield forward
    if has_gradients and forward.value.requires_grad:
        yield racer.backward(forward.value)


def _fastest(subject: FunctionSubject) -> tuple[torch.dtype, Rate]:
    """The type in which products are fastest here, of those that a right function may compute in, and how fast."""
    found: dict[torch.dtype, Rate] = {}
    for dtype in types_of(getattr(torch, subject.dtype), subject.device):
        reached = attempt(lambda dtype=dtype: rate(dtype, subject.device))
        if isinstance(reached, Caught):
            raise NotApplicableError(f"products of matrices cannot be timed beside it: {reached.sentence}")
        found[dtype] = reached
    dtype = max(found, key=lambda each: found[each].operations)
    return dtype, found[dtype]


def _beside(subject: FunctionSubject, problem: Problem) -> tuple[Racer, str]:
    if subject.reference is None:
        dense = Dense(subject, problem)
        return dense, f"{'causal' if dense.is_causal else 'full'} scaled_dot_product_attention"
    return Called(replace(subject, function=subject.reference), problem), "the reference"


def _timed_shape(subject: FunctionSubject) -> Shape:
    """The longest of a few lengths that is served and does not take long."""
    shape, spec, longest = shapes.base(subject), subject.spec, _LONGEST[subject.device]
    if subject.convention.is_cache and subject.device == "cuda":
        longest = _LONGEST_CACHE
    heads = spec.heads or spec.ratio * max(1, _HEADS[subject.device] // spec.ratio)
    rows = 1 if subject.convention.has_parts else _ROWS[subject.device]
    shape = replace(shape, batch=rows, heads=heads, groups=heads // spec.ratio, filled=shape.filled[:rows])
    expected = shapes.expected_seconds(subject, _SHORTEST)
    if expected > _MOST_SECONDS:
        raise NotApplicableError(f"a call at S={_SHORTEST} takes about {short_seconds(expected)}, too long to be timed")
    found, length = None, _SHORTEST
    while length <= longest:
        tried = shapes.of_length(subject, shape, length, length)
        racer = attempt(lambda tried=tried: Called(subject, problem_of(subject, tried)))
        seconds = racer if isinstance(racer, Caught) else attempt(partial(_second_call, racer, subject))
        if isinstance(seconds, Caught):
            break
        found, length = tried, 2 * length
        if seconds > _ENOUGH_SECONDS:
            break
    if found is None:
        raise NotApplicableError(f"no input of {_SHORTEST} tokens is served")
    return found


def _second_call(racer: Called, subject: FunctionSubject) -> float:
    """Seconds of a call and its backward, which neither compile nor load anything."""
    calls = [list(_passes(racer, has_gradients=subject.has_gradients)) for _ in range(2)]
    return min(sum(each.idle for each in passes) for passes in calls)
