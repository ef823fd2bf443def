"""What checks say of times: seconds with their spread, beside others, beside the least, and the machine's rate."""

import math

from nsa_doctor.checks._shared.of_function import conditions
from nsa_doctor.core.spread import relative_spread
from nsa_doctor.core.text import short_number, short_seconds
from nsa_doctor.probes.functions.arithmetic import cores
from nsa_doctor.probes.functions.clock import megahertz
from nsa_doctor.probes.functions.speed import Speed
from nsa_doctor.subject.function import FunctionSubject


def pace_words(subject: FunctionSubject, timed: Speed) -> str:
    """`at B=1, S=2048 …: forward 31 ms (half of 5 passes within 4 %), 1.8 times as long as …, 12 times its least`."""
    words = []
    for timing in timed.timings:
        own = min(timing.own)
        said = (
            f"{timing.kind} {short_seconds(own)} (half of {len(timing.own)} within {relative_spread(timing.own):.0%})"
        )
        if timing.plain:
            said += f", {short_number(own / min(timing.plain), 2)} times as long as {timed.beside}"
        if subject.spec.is_declared:
            said += f", {short_number(own / timed.rate.seconds(timing.work), 2)} times the least for its arithmetic"
        words.append(said)
    return f"{conditions(subject, timed.problem)}: {'; '.join(words)} ({rate_words(subject, timed)})"


def rate_words(subject: FunctionSubject, timed: Speed) -> str:
    """`163 GFLOP/s, 2 cores`."""
    clock = megahertz(subject.device)
    where = f"{cores()} cores" if subject.device == "cpu" else "" if clock is None else f"at {clock} MHz"
    return f"{flop_words(timed.rate.operations)}/s{f', {where}' if where else ''}"


def flop_words(count: float) -> str:
    """`163 GFLOP`."""
    power = max(0, min(len(_PREFIXES) - 1, int(math.log10(max(1.0, count)) / 3)))
    return f"{short_number(count / 1000**power)} {_PREFIXES[power]}FLOP"


_PREFIXES = ("", "k", "M", "G", "T", "P")
