"""FWD202 prefix-changes-with-what-follows

Detects: y(x[:t]) differs from y(x)[:t]: what a token gets depends on how long the sequence is.
Matters: what was trained at one length is another model at a shorter one; decoding and short documents differ.
Fix: a last partial block that is dropped or padded, a mask or position built from the end, a division by the length.

Example:
    # faulty
    positions = torch.arange(S - 1, -1, -1)  # counted from the end: one more token moves them all
    # correct
    positions = torch.arange(S)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, long_length, odd_lengths, one, told
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.lengths import boundary_lengths, evenly
from nsa_doctor.probes.model.built_module import comparable_specimen
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_PREFIXES = {"smoke": 6, "quick": 12, "full": 1 << 16}


def run(subject: Subject) -> Iterator[Finding]:
    count = _NUM_PREFIXES[subject.profile]
    plans = [(length, count) for length in odd_lengths(subject)]
    plans += [(length, max(4, count // 4)) for length in long_length(subject)]
    yield from one(_examine(subject, length, count) for length, count in plans if length > 1)


def _examine(subject: Subject, length: int, count: int) -> Finding | None:
    found = confirmed(subject, lambda subject: _shortest(subject, length, count)[1])
    if found is None:
        return None
    prefix, departure = _shortest(subject, length, count)
    if departure is None:
        return None  # what comes and goes from run to run is told by FWD206
    built = comparable_specimen(subject)
    x = built.input(length)
    head, kept = x[:, :prefix].clone(), {length: prefix, prefix: prefix}
    divergence = first_divergence(built, lambda: built(x), lambda: built(head), kept)
    message = f"the first {prefix} tokens alone give another output than at the head of {length}"
    return told(subject, "FWD202", message, divergence, departure, length=length, prefix=prefix)


def _shortest(subject: Subject, length: int, count: int) -> tuple[int, Departure | None]:
    """The shortest prefix tried whose own output departs from the whole's."""
    built = comparable_specimen(subject)
    base = baseline(built, built.input(length))
    inner = [prefix for prefix in boundary_lengths(subject.geometry, length - 1) if prefix < length]
    for prefix in sorted({*evenly(inner, count), length - 1}):
        with torch.no_grad():
            alone = built(base.x[:, :prefix])
        found = base.departure(alone, tokens=slice(prefix))
        if found is not None:
            return prefix, found
    return length, None


def planted(subject: Subject) -> Subject:
    def divided_by_the_length(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output / x.shape[1] ** 0.5

    return replace(subject, forward=divided_by_the_length)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD206",),
    explained_by=("FWD201", "FWD203"),
    priority=470,
    fuzzed=("prefix differs",),
)
