"""SEL101 range-out-of-bounds

Detects: a choice that names a block or a token that is not there: below zero, or beyond the end of the sequence.
Matters: it reads other memory than it should, or another sequence, or stops the GPU with an illegal access.
Fix: cut the last block at the end of the sequence, and mark an empty slot by -1 alone.

Example:
    # faulty
    ends = (blocks + 1) * l_sel  # beyond the sequence in a last block that is not full
    # correct
    ends = ((blocks + 1) * l_sel).clamp(max=num_tokens)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.choice import Row
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from faults(subject, "SEL101", _fault)


def _fault(row: Row) -> str | None:
    length = row.choice.num_tokens
    if row.choice.is_ranges:
        bad = [(start, end) for start, end in row.wanted if start < 0 or end > length]
        return f"hold a range outside [0, {length}]" if bad else None
    num_blocks = row.choice.rules.num_blocks(length)
    return f"name a block outside [0, {num_blocks})" if any(not 0 <= slot < num_blocks for slot in row.wanted) else None


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        last = slots.amax(-1, keepdim=True)
        return torch.where(slots == last, last + 1, slots)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("out of bounds",))
