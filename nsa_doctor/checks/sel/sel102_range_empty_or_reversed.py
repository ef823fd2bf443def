"""SEL102 range-empty-or-reversed

Detects: a token range that ends before it starts, or is empty without being padding.
Matters: a loop over such a range may never end, an `arange` over it raises, and the block it stood for is not read.
Fix: build ranges from block indices, and drop a block rather than cut it down to nothing.

Example:
    # faulty
    start, end = block * l_sel, query  # empty for the first query of a block
    # correct
    start, end = block * l_sel, query + 1
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
    yield from faults(subject, "SEL102", _fault)


def _fault(row: Row) -> str | None:
    if not row.choice.is_ranges:
        return None
    length = row.choice.num_tokens
    bad = [(start, end) for start, end in row.wanted if end < start or (end == start and start != length)]
    return "hold an empty or reversed range" if bad else None


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        width = subject.geometry.l_sel  # type: ignore[union-attr]
        start = torch.where(slots < 0, 0, slots * width)
        end = torch.where(slots < 0, 0, (slots * width + width).clamp(max=first_query + importance.shape[1]))
        return torch.stack((end, start), dim=-1)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
