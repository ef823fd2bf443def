"""SEL103 not-ascending

Detects: a choice that is out of order although the subject promises ascending order, or keeps it nearly always.
Matters: code that merges or removes neighbours relies on the order: duplicates survive and blocks are lost.
Fix: sort the chosen blocks before anything that compares neighbours, with empty slots last.

Example:
    # faulty
    slots = importance.topk(n).indices  # in the order of importance
    # correct
    slots = importance.topk(n).indices.sort(-1).values
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.choice import Row, choices
from nsa_doctor.subject.contract import Subject

_NEARLY_ALWAYS = 0.9  # whoever chooses the best first, in order of score, keeps ascending order far less often


def run(subject: Subject) -> Iterator[Finding]:
    found = choices(subject)
    free = [row for choice in found for row in choice.rows() if len(row.wanted) > len(choice.rules.forced(row.t))]
    in_order = sum(_fault(row) is None for row in free)
    if subject.is_choice_canonical or in_order > _NEARLY_ALWAYS * len(free):
        yield from faults(subject, "SEL103", _fault, found)


def _fault(row: Row) -> str | None:
    if row.choice.is_ranges:
        starts = [start for start, _ in row.wanted]
        return None if starts == sorted(starts) else "are not in ascending order"
    is_ordered = row.wanted == sorted(row.wanted) and row.entries[: len(row.wanted)] == row.wanted
    return None if is_ordered else "are not in ascending order with empty slots last"


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        return select(importance, first_query).flip(-1)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("unsorted",))
