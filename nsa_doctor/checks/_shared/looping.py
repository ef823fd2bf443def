"""Loops whose count of operations does not grow with the tokens, and is too high all the same: PRF101's other cases."""

from collections.abc import Iterator, Sequence

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.per_token import padded
from nsa_doctor.probes.cost.python_work import loops_over_pairs
from nsa_doctor.probes.cost.work import Work, heaviest
from nsa_doctor.subject.contract import Subject

# As many tokens as are tried at most. Loops over layers, heads, experts or the rounds of an iteration stay below.
_MOST_ROUNDS = 512
_LEAST_PER_PAIR = 0.75  # a loop that skips some stays above; one by pairs of tiles stays below


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


def loop_of_plain_python(subject: Subject) -> Iterator[Finding]:
    """A line of Python that runs for every pair of tokens, in every call."""
    loops = loops_over_pairs(subject, _LEAST_PER_PAIR)
    if not loops:
        return
    worst = loops[0]
    counts = ", ".join(
        f"{count:,} times at S={length}" for length, count in zip(worst.lengths, worst.counts, strict=True)
    )
    yield Finding(
        message=f"a line of plain Python runs {counts} in every call: once for every pair of tokens, or more",
        where=worst.place,
        evidence={"length": worst.lengths[-1], "times": worst.counts[-1], "num_lines": len(loops)},
        repro=command_for(subject, "PRF101"),
    )
