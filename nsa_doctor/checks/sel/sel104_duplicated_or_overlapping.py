"""SEL104 duplicated-or-overlapping

Detects: a choice that holds one block twice, or two ranges that share a token.
Matters: the tokens are read twice and get twice their weight, or another block that should be read is not.
Fix: take the union of forced and best blocks before counting to n; neighbours are equal only after a sort.

Example:
    # faulty
    best = importance.topk(n - forced.shape[-1]).indices  # a forced block may be among them
    slots = torch.cat((forced, best), dim=-1)
    # correct
    slots = importance.scatter(-1, forced, float("inf")).topk(n).indices
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.choice import Row
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from faults(subject, "SEL104", _fault)


def _fault(row: Row) -> str | None:
    if row.choice.is_ranges:
        spans = sorted(row.spans)
        shared = any(after[0] < before[1] for before, after in pairwise(spans))
        return "hold ranges that overlap" if shared else None
    return "name a block twice" if len(set(row.wanted)) < len(row.wanted) else None


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        return torch.where(slots < 0, slots.amax(-1, keepdim=True), slots)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("duplicate",))
