"""Two neighbouring lengths of which one takes many times as long: suspected by one look, confirmed by several."""

from dataclasses import dataclass, field, replace

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.cost.timing import Stopwatch
from nsa_doctor.probes.cost.work import LineWork, Work, count_work, heaviest
from nsa_doctor.subject.contract import Subject

# Cubic time on a length padded to the next power of two is eight times as much one token further; twice that is more
# than any method owes.
_LEAST_RATIO = 16.0
_SUSPECT_SECONDS = 0.003
_LEAST_SECONDS = 0.03
_LONG_SECONDS = 0.3
_LEAST_OPERATIONS = 500
_REPEATS = 3
_ROUNDS = 2


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
    def between(cls, shorter: int, longer: int, shorter_seconds: float, longer_seconds: float) -> "Cliff | None":
        """A cliff between two lengths as one measurement shows it; None where time grows as it may."""
        up = cls(slow=longer, fast=shorter, slow_seconds=longer_seconds, fast_seconds=shorter_seconds)
        down = cls(slow=shorter, fast=longer, slow_seconds=shorter_seconds, fast_seconds=longer_seconds)
        return next((cliff for cliff in (up, down) if cliff._is_suspect()), None)

    @property
    def ratio(self) -> float:
        """How many times as long the slow one takes."""
        return self.slow_seconds / max(self.fast_seconds, 1e-9)

    @property
    def allowed(self) -> float:
        """How many times as long it may take: with the cube of the length, and a margin."""
        return _LEAST_RATIO * max(1.0, self.slow / self.fast) ** 3

    def _is_suspect(self) -> bool:
        # Half of what is needed: a first look may be off.
        return self.ratio * 2 > self.allowed and self.slow_seconds - self.fast_seconds > _SUSPECT_SECONDS


def confirmed(subject: Subject, watch: Stopwatch, cliff: Cliff) -> Cliff | None:
    """The cliff with its place, if counting shows it, or the best of several passes in each of two rounds."""
    measured = _measured_again(watch, cliff)
    if measured is None:
        return None
    fast, slow = (count_work(subject, length, watch.mode) for length in (cliff.fast, cliff.slow))
    more = slow.num_operations - fast.num_operations
    if slow.num_operations > cliff.allowed / 2 * fast.num_operations and more > _LEAST_OPERATIONS:
        counted = f"; {slow.num_operations:,} operations and {fast.num_operations:,}"
        return replace(measured, where=_grown(slow, fast).place, counted=counted)
    if measured.ratio > cliff.allowed and measured.slow_seconds - measured.fast_seconds > _LEAST_SECONDS:
        return replace(measured, where=watch.hottest(cliff.slow))
    return None


def _measured_again(watch: Stopwatch, cliff: Cliff) -> Cliff | None:
    """The least ratio of two rounds; None as soon as one no longer looks like a cliff."""
    rounds = []
    for _ in range(_ROUNDS):
        repeats = 1 if cliff.slow_seconds > _LONG_SECONDS else _REPEATS  # what takes that long is no hiccup
        slow, fast = min(watch.seconds(cliff.slow, repeats)), min(watch.seconds(cliff.fast, _REPEATS))
        rounds.append(replace(cliff, slow_seconds=slow, fast_seconds=fast))
        if not rounds[-1]._is_suspect():
            return None
    return min(rounds, key=lambda again: again.ratio)


def _grown(slow: Work, fast: Work) -> LineWork:
    """The line that does most beyond what it does at the fast length."""
    known = {line.place: line.operations.total() for line in fast.lines}
    more = [line for line in slow.lines if line.operations.total() > 4 * known.get(line.place, 0)]
    return heaviest(more or slow.lines)
