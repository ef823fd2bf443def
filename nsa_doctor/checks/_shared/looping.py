"""Loops whose count of operations does not grow with the tokens, and is too high all the same: PRF101's other cases."""

from collections.abc import Iterator, Sequence

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.per_token import amounts, padded, sequential
from nsa_doctor.probes.cost.python_work import loops_over_pairs
from nsa_doctor.probes.cost.work import LineWork, Work, heaviest
from nsa_doctor.subject.contract import Subject

# As many tokens as are tried at most. Loops over layers, heads, experts or the rounds of an iteration stay below.
_MOST_ROUNDS = 512
_MOST_BESIDE = 16.0  # times as many operations of a recurrence
_MOST_SECONDS = 0.1  # of a call that is counted line by line
# Lengths, and how often a line runs for each further pair of tokens: a loop that skips some stays above, one by pairs
# of tiles below. At the longer ones a loop over tokens and blocks is seen too, and what fills sequences up is not.
_PAIRS = ((17, 33, 65), 0.75), ((128, 256, 512), 0.02)


def loop_to_a_limit(subject: Subject, works: Sequence[Work], mode: Mode) -> Iterator[Finding]:
    """A loop that goes over the longest length there may be, however few tokens there are."""
    lines = padded(works, _MOST_ROUNDS)
    if not lines:
        return
    worst = heaviest(lines)
    rounds = max(worst.sites.values())
    yield Finding(
        message=f"a loop goes {rounds:,} rounds at S={works[0].length} and at S={works[-1].length} alike, and starts "
        f"{works[-1].num_operations:,} operations ({mode})",
        where=worst.place,
        evidence={"rounds": rounds, "length": works[-1].length, "num_lines": len(lines), "mode": mode},
        repro=command_for(subject, "PRF101"),
    )


def _affordable(subject: Subject) -> Sequence[tuple[tuple[int, ...], float]]:
    """The longer lengths too, unless a call takes long at them or the shortest profile is asked for."""
    longest = _PAIRS[-1][0][-1]
    seconds = max((seconds for length, seconds in subject.call_seconds if length <= longest), default=0.0)
    is_short = subject.profile == "smoke" and not subject.is_slow  # one that is slow is examined as if by it
    return _PAIRS[:1] if is_short or seconds > _MOST_SECONDS else _PAIRS


def loop_of_plain_python(subject: Subject) -> Iterator[Finding]:
    """A line of Python that runs for every pair of tokens, or of tokens and blocks, in every call."""
    loops = next((found for pairs in _affordable(subject) if (found := loops_over_pairs(subject, *pairs))), None)
    if loops is None:
        return
    worst = loops[0]
    counts = ", ".join(
        f"{count:,} times at S={length}" for length, count in zip(worst.lengths, worst.counts, strict=True)
    )
    yield Finding(
        message=f"a line of plain Python runs {counts} in every call, as the square of the tokens does",
        where=worst.place,
        evidence={"length": worst.lengths[-1], "times": worst.counts[-1], "num_lines": len(loops)},
        repro=command_for(subject, "PRF101"),
    )


def is_beside_a_recurrence(works: Sequence[Work], lines: Sequence[LineWork]) -> bool:
    """Whether lines whose rounds need each other start so many more operations for each token."""
    needed = sequential(works[-2], works[-1])
    rounds = operations_of(works, [line for line in works[-1].lines if line.place in needed])
    return per_further_token(works, rounds) > _MOST_BESIDE * per_further_token(works, operations_of(works, lines))


def per_further_token(works: Sequence[Work], counts: Sequence[int]) -> float:
    """By how much a count grows for each token that the longest pass has beyond the shortest."""
    return (counts[-1] - counts[0]) / (works[-1].length - works[0].length)


def operations_of(works: Sequence[Work], lines: Sequence[LineWork]) -> list[int]:
    """How many operations these lines start in each pass."""
    return [
        sum(amounts([work], line.place, lambda each: each.operations.total())[0] for line in lines) for work in works
    ]
