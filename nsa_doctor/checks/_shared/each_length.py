"""Every length up to some hundred tokens, as far as there is time: one alone may be the one that goes wrong."""

from collections.abc import Callable, Iterator

from nsa_doctor.core.check import Profile
from nsa_doctor.core.lengths import short_ones_first
from nsa_doctor.probes.model.nominal_time import WorkByLength
from nsa_doctor.subject.contract import Subject

LONGEST = 256
_NOMINAL_SECONDS: dict[Profile, float] = {"smoke": 0.0, "quick": 1.5, "full": 9.0}


def each_length(subject: Subject, of_length: Callable[[int], object]) -> Iterator[int]:
    """The lengths that there is time to try, in a random order with short ones first; `of_length` tries one."""
    longest, left = min(LONGEST, subject.max_length), _NOMINAL_SECONDS[subject.profile]
    if subject.is_slow or not left:
        return
    work = WorkByLength(of_length, longest)
    for length in short_ones_first(range(1, longest + 1), subject.seed):
        left -= work.seconds(length)
        if left < 0:
            return
        yield length
