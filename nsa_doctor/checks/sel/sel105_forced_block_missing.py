"""SEL105 forced-block-missing

Detects: a choice without block 0 or without one of the two most recent blocks.
Matters: the beginning of the text and the words just read must always be within reach, or training is unstable.
Fix: rank the forced blocks above every score, and count them among the n.

Example:
    # faulty
    slots = importance.topk(n).indices
    # correct
    slots = importance.scatter(-1, forced, float("inf")).topk(n).indices
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.choice import Row
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from faults(subject, "SEL105", _fault)


def _fault(row: Row) -> str | None:
    rules, t = row.choice.rules, row.t
    partial = rules.num_blocks(row.choice.num_tokens) - 1 if row.choice.num_tokens % rules.l_sel else -1
    missing = [block for block in rules.forced(t) if block != partial and not row.covers(block)]
    return f"lack block {missing[0]}, which is forced" if missing else None


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        return slots.masked_fill(slots == 0, -1)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("forced block missing",))
