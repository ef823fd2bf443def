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

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, long_length, odd_lengths, one
from nsa_doctor.checks._shared.prefixes import other_prefixes, planned_prefixes
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_PREFIXES = {"smoke": 6, "quick": 12, "full": 1 << 16}


def run(subject: Subject) -> Iterator[Finding]:
    count = _NUM_PREFIXES[subject.profile]
    plans = [(length, count) for length in odd_lengths(subject)]
    plans += [(length, max(3, count // 4)) for length in long_length(subject)]
    yield from one(_examine(subject, length, count) for length, count in plans if length > 1)


def _examine(subject: Subject, length: int, count: int) -> Finding | None:
    planned = planned_prefixes(subject, length, count)
    prefix, departure = _first(subject, length, chain(planned, other_prefixes(subject, length, planned)))
    if departure is None:
        return None
    prefixes = planned if prefix in planned else [prefix]
    if confirmed(subject, lambda subject: _first(subject, length, prefixes)[1]) is None:
        return None
    prefix, departure = _first(subject, length, prefixes)
    if departure is None:
        return None  # what comes and goes from run to run is reported by FWD206
    built = comparable_module(subject)
    x = built.input(length)
    head, kept = x[:, :prefix].clone(), {length: prefix, prefix: prefix}
    divergence = first_divergence(built, lambda: built(x), lambda: built(head), kept)
    message = f"the first {prefix} tokens alone give another output than at the head of {length}"
    return departure_finding(subject, "FWD202", message, divergence, departure, length=length, prefix=prefix)


def _first(subject: Subject, length: int, prefixes: Iterable[int]) -> tuple[int, Departure | None]:
    """The first of the prefixes whose own output departs from the whole's; what one raises is raised if none does."""
    built, failure = comparable_module(subject), None
    base = baseline(built, built.input(length))
    for prefix in prefixes:
        try:
            with torch.no_grad():
                alone = built(head := base.x[:, :prefix])
        except NotComparableError:  # a length that is not tried again
            continue
        except SubjectFailedError as error:
            failure = failure or error
            continue
        found = base.departure(alone, tokens=slice(prefix), given=head)
        if found is not None:
            return prefix, found
    if failure is not None:
        raise failure
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
    explained_by=("FWD201", "FWD217", "FWD308"),
    priority=470,
    fuzzed=("prefix differs",),
    unless=("bidirectional", "stochastic"),
)
