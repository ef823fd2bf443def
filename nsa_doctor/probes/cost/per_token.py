"""What grows with the number of tokens, and which of it must go step by step because each step needs the last."""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsa_doctor.core.growth import is_affordable, ladder
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.cost.work import LineWork, Work, count_work
from nsa_doctor.subject.contract import Subject

_LONGEST = 512
_MOST_OPERATIONS = 5_000  # a pass of more would take longer than it tells

Choice = Callable[[Sequence[Work], Sequence[LineWork]], list[LineWork]]


@dataclass(frozen=True)
class Lengths:
    """Short lengths to look at first, and longer ones to look at what grew."""

    short: tuple[int, ...]
    long: tuple[int, ...]


def lengths_for_counting(subject: Subject) -> Lengths:
    """Two or three short ones, each twice the one before, and two long ones; no multiples of the usual block sizes."""
    longest = min(subject.max_length, _LONGEST)
    shares = (32, 16) if subject.profile == "smoke" else (32, 16, 8)
    short = tuple(dict.fromkeys(longest // share + 1 for share in shares))
    return Lengths(short, tuple(length for length in (longest // 2 + 1, longest - 1) if length > short[-1]))


def growing(
    subject: Subject,
    mode: Mode,
    amount: Callable[[LineWork], int],
    least: float,
    keep: Choice = lambda works, lines: list(lines),
) -> tuple[list[Work], list[LineWork]]:
    """Passes over ever more tokens, and the lines of the last one whose amount grows by `least` per further token.

    It has to do so between the short lengths and go on to the long ones, unless those would take too long. `keep`
    drops lines that may grow.
    """
    lengths = lengths_for_counting(subject)
    works = ladder(lengths.short, lambda length: count_work(subject, length, mode), _costs)
    found = keep(works, _growing(works, amount, least))
    affordable = [length for length in lengths.long if found and is_affordable(works[-2], works[-1], length, _costs)]
    if not affordable:
        return works, found
    works += [count_work(subject, length, mode) for length in affordable]
    return works, keep(works, _growing(works, amount, least))


def padded(works: Sequence[Work], least: int) -> list[LineWork]:
    """Lines whose loop goes so many rounds or more at every length, as one over the longest length there may be does.

    None where some of them need each other's results round by round: a recurrence may be padded.
    """
    rounds = [{line.place: max(line.sites.values(), default=0) for line in work.lines} for work in works]
    longer = works[-1]
    found = [
        (number, line)
        for number, line in enumerate(longer.lines)
        if min(counts.get(line.place, 0) for counts in rounds) >= least
    ]
    if any(longer.flow.longest_chain(number) >= least / 2 for number, _ in found):
        return []
    return [line for _, line in found]


def amounts(works: Sequence[Work], place: Place, amount: Callable[[LineWork], int]) -> list[int]:
    """The amount of one line in each pass."""
    return [sum(amount(line) for line in work.lines if line.place == place) for work in works]


def by_code(lines: Sequence[LineWork]) -> list[list[LineWork]]:
    """The lines of one source file that serve one class of module belong together, in however many modules."""
    groups: dict[tuple[str, str], list[LineWork]] = {}
    for line in lines:
        groups.setdefault((line.place.file, line.place.module_class), []).append(line)
    return list(groups.values())


def sequential(shorter: Work, longer: Work) -> set[Place]:
    """Lines of loops in which each round needs the last one's result: the chain of arithmetic grows with the tokens.

    What such a line reads one token's share of at a time, and what runs once in each of its rounds, belongs to it.
    """
    further = longer.length - shorter.length
    chained: set[int] = set()
    for number, line in enumerate(longer.lines):
        rounds = len(line.moments)
        if rounds < further / 2:
            continue
        others = [(n, len(other.moments)) for n, other in enumerate(shorter.lines) if other.place == line.place]
        before, rounds_before = others[0] if others else (None, 0)
        chain = longer.flow.longest_chain(number)
        earlier = 0 if before is None else shorter.flow.longest_chain(before)
        keeps_up = rounds * earlier <= 1.5 * chain * rounds_before  # within each round of another loop it would not
        if chain - earlier >= further / 2 and keeps_up:
            chained.add(number)
    while joined := _joined(longer, chained):
        chained |= joined
    return {longer.lines[number].place for number in chained}


def _costs(work: Work) -> list[tuple[float, float]]:
    """By operations: a clock would decide otherwise each time."""
    return [(work.num_operations, _MOST_OPERATIONS)]


def _growing(works: Sequence[Work], amount: Callable[[LineWork], int], least: float) -> list[LineWork]:
    """Lines that grow by `least` per further token from each pass to the next, and in the end half as fast as at first.

    What grows until all of a fixed number of cases have occurred, as experts that get a token do, slows down.
    """
    found = []
    for line in works[-1].lines:
        counts = amounts(works, line.place, amount)
        slopes = [
            (high - low) / (longer.length - shorter.length)
            for shorter, longer, low, high in zip(works, works[1:], counts, counts[1:], strict=False)
        ]
        if min(slopes) >= max(least, slopes[0] / 2):
            found.append(line)
    return found


def _joined(work: Work, chained: set[int]) -> set[int]:
    """Further lines that feed a chained one in every second round, or run between its rounds."""
    feeds: dict[int, int] = {}
    for node in work.flow.nodes:
        if node.line in chained:
            for source in node.sources:
                fed_by = work.flow.nodes[source].line
                feeds[fed_by] = feeds.get(fed_by, 0) + 1
    others = [number for number in range(len(work.lines)) if number not in chained]
    return {
        number
        for number in others
        if feeds.get(number, 0) >= work.length / 2
        or any(_alternates(work.lines[number], work.lines[other], work.length) for other in chained)
    }


def _alternates(line: LineWork, other: LineWork, length: int) -> bool:
    gaps = {bisect(other.moments, moment) for moment in line.moments} - {0, len(other.moments)}
    return len(gaps) >= length / 2
