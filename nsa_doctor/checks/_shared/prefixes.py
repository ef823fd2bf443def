"""Which prefixes of a sequence are compared with its head: where block code breaks, and others as time allows."""

import random
import time
from collections.abc import Collection, Iterator

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.lengths import boundary_lengths, evenly
from nsa_doctor.subject.contract import Subject

_SECONDS = {"smoke": 0.3, "quick": 0.6, "full": 10.0}  # for further prefixes, at each length


def planned_prefixes(subject: Subject, length: int, count: int) -> list[int]:
    """The prefixes at which block code breaks, ascending."""
    inner = [prefix for prefix in boundary_lengths(subject.geometry, length - 1) if prefix < length]
    return sorted({*evenly(inner, count), length - 1})


def other_prefixes(subject: Subject, length: int, planned: Collection[int]) -> Iterator[int]:
    """Every other prefix in a random order, short ones first where there are many, for as long as there is time."""
    chance = random.Random(subject.seed)  # noqa: S311 (an order, no secret)
    end = time.monotonic() + _SECONDS[subject.profile]
    shorter = max((each for each in odd_lengths(subject) if each < length), default=1)  # examined with its own prefixes
    others = [prefix for prefix in range(shorter, length) if prefix not in planned]
    for prefix in sorted(others, key=lambda prefix: prefix * chance.random()):
        if time.monotonic() > end:
            return
        yield prefix
