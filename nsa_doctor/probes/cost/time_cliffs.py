"""Two neighbouring lengths of which one takes many times as long: suspected by one look, confirmed by several."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.cost.timing import Stopwatch
from nsa_doctor.probes.cost.work import LineWork, Work, count_work, heaviest
from nsa_doctor.subject.contract import Subject

# Cubic time on a length padded to the next power of two is eight times as much one token further; twice that is more
# than any method needs.
_LEAST_RATIO = 16.0
_SUSPECT_SECONDS = 0.003
_LEAST_SECONDS = 0.03
_LONG_SECONDS = 0.3
_LEAST_OPERATIONS = 500
_REPEATS = 3
_ROUNDS = 2


@dataclass(frozen=True)
class Look:
    """One pass: the time it took and the operations it started (0 where they were not counted)."""

    seconds: float
    num_operations: int = 0


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """The slow length of two neighbours and the fast one; `where` and `counted` are known once it is confirmed."""

    slow: int
    fast: int
    slow_seconds: float
    fast_seconds: float
    where: Place = field(default_factory=Place)
    counted: str = ""

    @classmethod
    def between(cls, shorter: int, longer: int, first: "Look", second: "Look") -> "Cliff | None":
        """A cliff between two lengths as one look shows it; None where time and operations grow as they may."""
        ends = ((shorter, first), (longer, second))
        for (fast, at_fast), (slow, at_slow) in (ends, ends[::-1]):
            cliff = cls(slow=slow, fast=fast, slow_seconds=at_slow.seconds, fast_seconds=at_fast.seconds)
            if cliff.is_suspect() or takes_many_more(cliff, at_slow.num_operations, at_fast.num_operations):
                return cliff
        return None

    @property
    def ratio(self) -> float:
        """How many times as long the slow one takes."""
        return self.slow_seconds / max(self.fast_seconds, 1e-9)

    @property
    def allowed(self) -> float:
        """How many times as long it may take: with the cube of the length, and a margin."""
        return _LEAST_RATIO * max(1.0, self.slow / self.fast) ** 3

    def is_suspect(self) -> bool:
        """Whether it is worth a second look."""
        # Half of what is needed: a first look may be off.
        return self.ratio * 2 > self.allowed and self.slow_seconds - self.fast_seconds > _SUSPECT_SECONDS


def confirmed(subject: Subject, watch: Stopwatch, cliff: Cliff) -> Cliff | None:
    """The cliff with its place, if counting shows it, or the best of several passes in each of two rounds."""
    fast, slow = (count_work(subject, length, watch.mode) for length in (cliff.fast, cliff.slow))
    if takes_many_more(cliff, slow.num_operations, fast.num_operations):
        counted = f"; {slow.num_operations:,} operations and {fast.num_operations:,}"
        measured = _least(_rounds(watch, cliff))
        # A faster machine moves no count, so the clock need only agree on which of the two is slow.
        return replace(measured, where=_grown(slow, fast).place, counted=counted) if measured.ratio > 2 else None
    rounds = []
    for measured in _rounds(watch, cliff):
        if not measured.is_suspect():
            return None
        rounds.append(measured)
    least = _least(rounds)
    if least.ratio > cliff.allowed and least.slow_seconds - least.fast_seconds > _LEAST_SECONDS:
        return replace(least, where=watch.hottest(cliff.slow))
    return None


def takes_many_more(cliff: Cliff, slow_operations: int, fast_operations: int) -> bool:
    """Whether the slow length starts so many more operations that the length alone does not explain them."""
    more = slow_operations - fast_operations
    return more > _LEAST_OPERATIONS and slow_operations > cliff.allowed / 2 * fast_operations


def _rounds(watch: Stopwatch, cliff: Cliff) -> Iterator[Cliff]:
    """The cliff as each of several rounds measures it, by the best of a few passes."""
    for _ in range(_ROUNDS):
        repeats = 1 if cliff.slow_seconds > _LONG_SECONDS else _REPEATS  # what takes that long is no hiccup
        slow, fast = min(watch.seconds(cliff.slow, repeats)), min(watch.seconds(cliff.fast, _REPEATS))
        yield replace(cliff, slow_seconds=slow, fast_seconds=fast)


def _least(rounds: Iterable[Cliff]) -> Cliff:
    return min(rounds, key=lambda measured: measured.ratio)


def _grown(slow: Work, fast: Work) -> LineWork:
    """The line that does most beyond what it does at the fast length."""
    known = {line.place: line.operations.total() for line in fast.lines}
    more = [line for line in slow.lines if line.operations.total() > 4 * known.get(line.place, 0)]
    return heaviest(more or slow.lines)
