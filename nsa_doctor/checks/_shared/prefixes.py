"""Which prefixes of a sequence are compared with its head: where block code breaks, and others as time allows."""

from collections.abc import Collection, Iterator

import torch

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.lengths import boundary_lengths, evenly, short_ones_first
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.subject.contract import Subject

_NOMINAL_SECONDS = {"smoke": 0.2, "quick": 0.6, "full": 10.0}  # for further prefixes, at each length


def planned_prefixes(subject: Subject, length: int, count: int) -> list[int]:
    """The prefixes at which block code breaks, ascending."""
    inner = [prefix for prefix in boundary_lengths(subject.geometry, length - 1) if prefix < length]
    return sorted({*evenly(inner, count), length - 1})


def other_prefixes(subject: Subject, length: int, planned: Collection[int]) -> Iterator[int]:
    """Every other prefix in a random order, short ones first where there are many, for as long as there is time.

    That is counted: there are as many as whole sequences would take it.
    """
    if subject.is_slow:
        return
    sp = comparable_module(subject)
    with torch.no_grad():
        seconds = nominal_seconds(lambda: sp(sp.input(length)))
    shorter = max((each for each in odd_lengths(subject) if each < length), default=1)  # examined with its own prefixes
    others = (prefix for prefix in range(shorter, length) if prefix not in planned)
    yield from short_ones_first(others, subject.seed)[: int(_NOMINAL_SECONDS[subject.profile] / seconds)]
