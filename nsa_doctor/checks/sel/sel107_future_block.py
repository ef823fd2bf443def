"""SEL107 future-block

Detects: a choice that holds a block which starts after the query.
Matters: the future is within reach: loss falls too fast and generation is worse than evaluation.
Fix: a block is a candidate when its first token is no later than the query; hide all others before taking the best.

Example:
    # faulty
    slots = importance.topk(n).indices
    # correct
    is_future = torch.arange(num_blocks) * l_sel > query
    best = importance.masked_fill(is_future, float("-inf")).topk(n)
    slots = best.indices.masked_fill(best.values.isinf(), -1)
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
    yield from faults(subject, "SEL107", _fault)


def _fault(row: Row) -> str | None:
    late = [start for start, _ in row.spans if row.t < start < row.choice.num_tokens]
    return f"hold a block that starts at token {late[0]}, after the query" if late else None


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        last = (first_query + importance.shape[1] - 1) // subject.geometry.l_sel  # type: ignore[union-attr]
        return torch.where(slots == slots.amax(-1, keepdim=True), last, slots)

    return replace(subject, select=faulty)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("future block",), unless=("bidirectional",)
)
