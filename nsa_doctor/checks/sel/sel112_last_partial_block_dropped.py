"""SEL112 last-partial-block-dropped

Detects: queries in a last block that is not full and that do not choose it, though it is the one they are in.
Matters: at lengths that are no multiple of the block size the newest tokens, the query's own among them, are not read.
Fix: count blocks by rounding up, and cut the last one at the end of the sequence.

Example:
    # faulty
    num_blocks = num_tokens // l_sel
    # correct
    num_blocks = (num_tokens + l_sel - 1) // l_sel
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
    yield from faults(subject, "SEL112", _fault)


def _fault(row: Row) -> str | None:
    rules, length = row.choice.rules, row.choice.num_tokens
    last = rules.num_blocks(length) - 1
    if length % rules.l_sel == 0 or row.t // rules.l_sel != last or row.covers(last):
        return None
    return f"lack block {last}, the last one, which holds {length % rules.l_sel} of {rules.l_sel} tokens"


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        slots = select(importance, first_query)
        num_full = (first_query + importance.shape[1]) // subject.geometry.l_sel  # type: ignore[union-attr]
        return torch.where(slots >= num_full, -1, slots)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
