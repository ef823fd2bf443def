"""How a sweep found one tensor at one point, as one of a few words with a sign for each."""

from collections.abc import Mapping
from dataclasses import dataclass

from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Measurement

GATED = "gated"  # counted on the way to the output, and reported with it


@dataclass(frozen=True)
class State:
    """`paint` is the colour's name on the page, `letter` what stands in it where colour does not tell."""

    word: str
    letter: str
    paint: str
    meaning: str


FINITE = State("finite", "", "fine", "finite: every value is a number")
NAN = State("NaN", "N", "bad", "NaN among the values")
INF = State("inf", "∞", "bad", "infinite values")
BOTH = State("NaN and inf", "B", "bad", "NaN and infinite values")
TROUBLES: Mapping[str, State] = {
    "raised": State("raises", "R", "worse", "the subject raises an exception"),
    "wrong_shape": State("wrong shape", "S", "worse", "the output has a wrong shape"),
    "out_of_memory": State("no memory", "M", "worse", "memory ran out"),
    "died": State("dies", "D", "halt", "the process dies"),
    "timeout": State("hangs", "H", "halt", "the call does not return"),
    "not_measured": State("not tried", "–", "idle", "not tried: something before it stood in the way"),
}
STATES = (FINITE, NAN, INF, BOTH, *TROUBLES.values())


def state_of(measurement: Measurement, target: str) -> State | None:
    """The state of a tensor; None where the point has none of that name."""
    census = measurement.census(target)
    if census is None and measurement.trouble is not None:
        has_none = target == GRADIENTS and measurement.point.mode != "train"
        return None if has_none else TROUBLES[measurement.trouble.kind]
    gated = measurement.census(GATED)
    if target == OUTPUT and gated is not None and not gated.is_finite:
        census = gated
    if census is None:
        return None
    if census.num_nan and census.num_inf:
        return BOTH
    return NAN if census.num_nan else (INF if census.num_inf else FINITE)
