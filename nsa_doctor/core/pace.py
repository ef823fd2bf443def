"""How much of a slow subject an examination looks at: shorter sequences, the most telling checks first, and an end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from nsa_doctor.core.check import Profile

_SECONDS: Mapping[Profile, float] = {"smoke": 30.0, "quick": 90.0}  # `full` takes its time
_SECONDS_OF_A_LOOP: Mapping[Profile, float] = {"smoke": 80.0, "quick": 240.0}  # most checks are at an end by then
_SECONDS_OF_ALL: Mapping[Profile, float] = {"smoke": 100.0, "quick": 300.0}  # whatever takes them
_SLOW_CALL = 0.5  # seconds of a forward pass at the longest length that is examined
SHORT, SLOW_SHORT_CALL = 64, 0.1  # tokens, and seconds: most checks make hundreds of calls that short
_SHORT_CALL_OF_A_LOOP = 0.05  # over tokens, in Python
_WANTED_CALL = 0.25
_EVEN = 1.5  # a longer call that takes at most so many times as long costs what a short one does
_SHARE_OF_A_SWEEP = 0.25
_CALLS_OF_A_LENGTH = 4.0  # forward passes that the three modes of one length cost
_PASSES_OF_VALUES = 27.0  # forward passes that every unusual value and every low precision cost at one length
_MOST_LENGTHS = 5
_SHARE_OF_A_CHECK = 1 / 3  # of what is left
_SHARE_OF_A_TELLING_ONE = 0.8  # it makes few calls as long as it finds nothing
_LEAST_FOR_A_CHECK = 1.5  # seconds, less than which nothing can be seen in
_ENDING = 4.0  # seconds in which children end and findings are merged
_FURTHER = "--profile full takes the time it needs"


@dataclass(frozen=True)
class Pace:
    """`length` is the longest that is examined, where a forward pass takes `call_seconds`; all ends after `seconds`.

    Of up to `SHORT` tokens it takes `short_seconds`.
    """

    length: int
    call_seconds: float
    short_seconds: float
    seconds: float
    profile: Profile

    @classmethod
    def of(cls, call_seconds: Sequence[Sequence[Any]], profile: Profile) -> Self | None:
        """The pace for a subject whose forward passes took so long, (length, seconds); None where it is not slow."""
        if profile not in _SECONDS or not call_seconds:
            return None
        short = max((each for length, each in call_seconds if length <= SHORT), default=0.0)
        is_slow = short > SLOW_SHORT_CALL or call_seconds[-1][1] > _SLOW_CALL
        if not is_slow and short <= _SHORT_CALL_OF_A_LOOP:
            return None
        wanted = max(_WANTED_CALL, _EVEN * call_seconds[0][1])
        length, seconds = [(length, seconds) for length, seconds in call_seconds if seconds <= wanted][-1]
        return cls(
            length=length,
            call_seconds=seconds,
            short_seconds=max(call_seconds[0][1], short),
            seconds=(_SECONDS if is_slow else _SECONDS_OF_A_LOOP)[profile],
            profile=profile,
        )

    @property
    def num_lengths(self) -> int:
        """How many lengths a sweep may take."""
        affordable = self.seconds * _SHARE_OF_A_SWEEP / (_CALLS_OF_A_LENGTH * self.call_seconds)
        return max(1, min(_MOST_LENGTHS, int(affordable)))

    @property
    def num_for_values(self) -> int:
        """At how many short lengths a sweep may give unusual values and low precisions."""
        return int(self.seconds * _SHARE_OF_A_SWEEP / (_PASSES_OF_VALUES * self.short_seconds))

    def seconds_left(self, spent: float, *, is_telling: bool = False) -> float:
        """The seconds that the next check may take, after so many of the examination; none once it has to end."""
        share = _SHARE_OF_A_TELLING_ONE if is_telling else _SHARE_OF_A_CHECK
        seconds = (self.seconds - _ENDING - spent) * share
        return seconds if seconds >= _LEAST_FOR_A_CHECK else 0.0

    @property
    def note(self) -> str:
        """What a report says of it."""
        return (
            f"examined up to S={self.length}, where a call takes {self.call_seconds:.2g} s, with the most telling "
            f"checks first and for {self.seconds:g} s: {_FURTHER}"
        )

    @property
    def left_out(self) -> str:
        """Why a check was not run."""
        calls = f"calls of {self.call_seconds:.2g} s"
        return f"left out: {calls} leave no time for it within {self.seconds:g} s; {_FURTHER}"


def seconds_of_all(profile: Profile) -> float:
    """After how many seconds no further check of an examination begins, however fast the calls of the subject are."""
    return _SECONDS_OF_ALL.get(profile, math.inf)


def left_out_of_all(profile: Profile) -> str:
    """Why a check did not begin after those."""
    return f"left out: the {seconds_of_all(profile):g} s of the profile {profile} were over; {_FURTHER}"
