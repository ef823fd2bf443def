"""What checks that compare two runs have in common: lengths, a finding only when it repeats, and its words."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.check import Profile
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.lines_apart import at_branch, at_own_line
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.probes.numerics.compare import Departure
from nsa_doctor.probes.numerics.divergence import Divergence, first_divergence
from nsa_doctor.subject.contract import Subject

_LENGTHS: dict[Profile, tuple[int, ...]] = {"smoke": (67,), "quick": (67, 211), "full": (67, 211, 523, 1031)}
_WHOLE = (192, 384, 640)
ANOTHER_SEED = 31337
_LENGTH_OF_MANY, _MANY_TOKENS = 211, (5155, 2062)
_NOMINAL_SECONDS = 0.7


def odd_lengths(subject: Subject) -> list[int]:
    """Lengths no dimension of a model is likely to share, as far as the subject goes; else its longest."""
    fitting = [length for length in _LENGTHS[subject.profile] if length <= subject.max_length]
    return fitting or [subject.max_length]


def middle_lengths(subject: Subject) -> list[int]:
    """Lengths between, whole in blocks of many sizes: what goes wrong at these alone shows at no odd one."""
    return [] if subject.profile == "smoke" else [length for length in _WHOLE if length < subject.max_length]


def long_length(subject: Subject) -> list[int]:
    """The longest length, for what shows only there; none in the shortest profile."""
    return [] if subject.profile == "smoke" else [subject.max_length]


def many_tokens(subject: Subject, calls: int = 1) -> list[tuple[int, int]]:
    """A length, and rows enough for more tokens in all than a limit counted over the batch is likely to allow.

    The most that so many calls have time for; none where they have not, and in the shortest profile.
    """
    if subject.profile == "smoke":
        return []
    sp, length = comparable_module(subject), min(_LENGTH_OF_MANY, subject.max_length)
    with torch.no_grad():
        counted = nominal_seconds(lambda: sp(sp.input(length)))
    most = (math.ceil(tokens / length) for tokens in _MANY_TOKENS)
    return [(length, rows) for rows in most if rows > 1 and calls * rows * counted <= _NOMINAL_SECONDS][:1]


def confirmed(subject: Subject, find: Callable[[Subject], Departure | None]) -> Departure | None:
    """What is found, when another seed's weights and input show it too: a near tie that rounding breaks does not."""
    found = find(subject)
    if found is None or find(replace(subject, seed=subject.seed + ANOTHER_SEED)) is None:
        return None
    return found


def said_of(values: str) -> str:
    """The kind of values that an input is of, in words behind what is said of it."""
    return f" where all of the input is {values}" if values else ""


def departure_finding(
    subject: Subject, code: str, message: str, divergence: Divergence, departure: Departure, **evidence: Scalar
) -> Finding:
    """The finding, with the operation at which the two runs part."""
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    return Finding(
        code=code,
        message=f"{message}: {departure.text}{at}",
        where=divergence.place,
        evidence={
            **evidence,
            "num_tokens": departure.num_tokens,
            "error": departure.error,
            "floor": departure.floor,
            "operation": divergence.operation,
        },
        repro=command_for(subject, code),
    )


def branch_finding(
    built: BuiltModule,
    code: str,
    message: str,
    ways: tuple[Callable[[], Tensor], Callable[[], Tensor]],
    departure: Departure,
    kept: Mapping[int, int] | None = None,
    **evidence: Scalar,
) -> Finding:
    """The finding about two calls, as it departs and plainly, at a line that one of them alone runs, where there is.

    `kept` as for `first_divergence`. Calls of several rows and of one, which it is for, may part in an innocent line:
    one that is not near where they diverge is not taken then.
    """
    divergence = first_divergence(built, ways[1], ways[0], kept or {})
    with unobserved():
        place = at_branch(built.subject, built.module, divergence.place, *ways, is_near=kept is not None)
    return departure_finding(built.subject, code, message, replace(divergence, place=place), departure, **evidence)


def failing_finding(
    built: BuiltModule, code: str, message: str, trouble: Trouble, ways: Iterable[Callable[[], object]], **of: Scalar
) -> Finding:
    """The finding about a call that failed, at the line that it alone runs, of two ways: as it failed, and plainly."""
    with torch.no_grad(), unobserved():
        place = at_own_line(built.subject, built.module, trouble.place, *ways)
    return Finding(code=code, message=message, where=place, evidence=of, repro=command_for(built.subject, code))


def went_wrong(trouble: Trouble) -> str:
    """What the subject did in place of giving an output to compare: it `raises …`, or gives one of another shape."""
    return f"{'raises' if trouble.kind == 'raised' else 'gives an output of another shape:'} {trouble.message}"


def cuts_of(length: int, count: int) -> Sequence[int]:
    """Where to cut a sequence: before the last token, in the middle, and from three on after the first and evenly."""
    if count == 2:
        return sorted({length // 2, length - 1} & set(range(1, length)))
    even = (round(length * (index + 1) / (count - 1)) for index in range(count - 2))
    return sorted({1, length - 1, *even} & set(range(1, length)))


def one(findings: Iterator[Finding | None]) -> Iterator[Finding]:
    """The first finding: the rest has the same cause."""
    yield from (finding for finding in [next((finding for finding in findings if finding), None)] if finding)
