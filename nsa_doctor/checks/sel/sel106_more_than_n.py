"""SEL106 more-than-n

Detects: a choice of more blocks than the geometry's n.
Matters: more is read than the method allows, memory and time grow, and results are not those of the configuration.
Fix: forced blocks are counted among the n: choose n minus their number by score.

Example:
    # faulty
    best = importance.scatter(-1, forced, float("-inf")).topk(n).indices
    slots = torch.cat((forced, best), dim=-1)
    # correct
    best = importance.scatter(-1, forced, float("-inf")).topk(n - forced.shape[-1]).indices
    slots = torch.cat((forced, best), dim=-1)
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
    yield from faults(subject, "SEL106", _fault)


def _fault(row: Row) -> str | None:
    rules = row.choice.rules
    blocks = {block for block in row.blocks if block in rules.candidates(row.t)}
    return f"hold {len(blocks)} blocks, more than {rules.n_sel}" if len(blocks) > rules.n_sel else None


def planted(subject: Subject) -> Subject:

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        block = torch.arange(importance.shape[-1])
        t = torch.arange(first_query, first_query + importance.shape[1])[None, :, None, None]
        seen = block * subject.geometry.l_sel <= t  # type: ignore[union-attr]
        return torch.where(seen, block, -1).expand(*importance.shape)

    return replace(subject, select=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", fuzzed=("too many",))
