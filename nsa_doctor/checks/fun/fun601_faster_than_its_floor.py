"""FUN601 faster-than-its-floor

Detects: a pass, called again on the same tensors as a benchmark does, that takes less than half of the time that its
arithmetic needs, by `--spec`, at the rate this machine reaches in the same run. Else a note: how long forward and
backward take beside `--reference` or torch's own attention, and beside that least time.
Matters: such a figure is no speed: the answer was kept, is not computed yet, runs on another stream, or is not whole.
Fix: time values that were not there before, until the device is idle, and compare what was timed with the oracle.

Example:
    # faulty
    return CACHE.setdefault(q.data_ptr(), attend(q, k, v))
    # correct
    return attend(q, k, v)
"""

from collections.abc import Iterator
from typing import Any

import torch

from nsa_doctor.checks._shared.of_function import conditions, found, injected
from nsa_doctor.checks._shared.of_speed import flop_words, pace_words, rate_words
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note, Scalar
from nsa_doctor.core.text import short_bytes, short_seconds
from nsa_doctor.probes.functions.speed import Speed, Timing, seconds_with_other_values, speed
from nsa_doctor.subject.function import FunctionSubject

_TENSORS = {"forward": "out", "backward": "dq"}
_ALREADY = 3.0  # times as long, and other values make the difference


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    timed = speed(subject)
    for timing in timed.timings:
        if subject.spec.is_declared and timing.is_below(timed.rate):
            yield _too_fast(subject, timed, timing)
            return
    yield Note(message=pace_words(subject, timed))


def _too_fast(subject: FunctionSubject, timed: Speed, timing: Timing) -> Finding:
    own, idle, least = min(timing.own), min(timing.idle), timed.rate.seconds(timing.work)
    with_others = seconds_with_other_values(subject, timed, timing.kind)
    reason = "it does not do all of its work"
    if with_others is not None and with_others > max(_ALREADY * own, least / 2):
        reason = f"with values that it was not called with before it takes {short_seconds(with_others)}"
    elif idle > _ALREADY * own:
        reason = f"the device is busy for {short_seconds(idle)}, on another stream than the caller's"
    needs = f"{flop_words(timing.work.operations)} take {short_seconds(least)} at the rate of products of matrices"
    if timing.work.bytes / timed.rate.bytes == least:
        needs = f"{short_bytes(timing.work.bytes)} take {short_seconds(least)} at the rate of a copy"
    message = (
        f"{timing.kind} of {subject.name} takes {short_seconds(own)} {conditions(subject, timed.problem)}, and its "
        f"{needs} in the same run ({rate_words(subject, timed)}): {reason}"
    )
    evidence: dict[str, Scalar] = {
        "seconds": own,
        "least": least,
        "ratio": own / least,
        "operations": timing.work.operations,
        "rate": timed.rate.operations,
        "target": _TENSORS[timing.kind],
        "tensor": _TENSORS[timing.kind],
        "property": reason,
    }
    return found(subject, "FUN601", message, timed.problem, None, evidence, timing.kind == "backward")


def planted(subject: FunctionSubject) -> FunctionSubject:
    kept: dict[Any, Any] = {}

    def keeps_long_ones(*positional: Any, **keywords: Any) -> Any:
        given = [each for each in (*positional, *keywords.values()) if isinstance(each, torch.Tensor)]
        key = tuple(each.data_ptr() for each in given)
        if given[0].numel() < _MANY:
            return subject.function(*positional, **keywords)
        if key not in kept:
            kept[key] = (given, subject.function(*positional, **keywords))  # its inputs stay, and their addresses
        answer = kept[key][1]
        out = answer if isinstance(answer, torch.Tensor) else answer[0]
        return out.detach().requires_grad_(out.requires_grad)

    return injected(subject, keeps_long_ones)


_MANY = 2**17

CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    examines="function",
    blocked_by=("FUN101", "FUN102"),
    explained_by=("FUN503", "FUN507"),
    priority=570,
)
