"""SEL109 ties-unstable

Detects: blocks of equal importance among which the choice depends on the row of the batch, on the run or on the dtype;
or does not fall on the lower index, where the subject promises that.
Matters: two runs, or training and decoding, read different blocks for no reason, and no comparison is ever exact.
Fix: break ties by index: a stable sort, or the index in the last bits of what is sorted.

Example:
    # faulty
    slots = importance.topk(n).indices  # any of those that tie
    # correct
    slots = importance.sort(-1, descending=True, stable=True).indices[..., :n]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.choice import Choice, Row, selected
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules, rules_of

_ROWS = 3
_BLOCKS_BEYOND = 9  # more than can be chosen, so that some tie is left out


def run(subject: Subject) -> Iterator[Finding]:
    rules = rules_of(subject)
    found = [choice for scores in _tied(rules) for choice in _each_dtype(subject, scores, rules)]
    not_lowest = list(faults(subject, "SEL109", _not_lowest, found)) if subject.is_choice_canonical else []
    yield from (not_lowest or list(_unstable(subject, found)))[:1]


def _tied(rules: Rules) -> Iterator[Tensor]:
    """Importance [B, 1, 1, J], the same in each row: all equal, all zero, and two values in turn."""
    num_blocks = rules.n_sel + _BLOCKS_BEYOND
    for values in (torch.ones(num_blocks), torch.zeros(num_blocks), torch.arange(num_blocks) % 2 + 0.5):
        yield values.expand(_ROWS, 1, 1, num_blocks).clone()


def _each_dtype(subject: Subject, scores: Tensor, rules: Rules) -> Iterator[Choice]:
    first_query = scores.shape[-1] * rules.l_sel - 1
    for dtype in (torch.float32, torch.float64):
        choice = selected(subject, scores.to(dtype), first_query)
        assert choice is not None
        yield choice


def _not_lowest(row: Row) -> str | None:
    due = row.choice.rules.best(row.scores, row.t)
    return None if row.blocks == due else f"do not take the lower index at ties, blocks {due}"


def _unstable(subject: Subject, found: list[Choice]) -> Iterator[Finding]:
    for narrow, wide in zip(found[::2], found[1::2], strict=True):
        rows = [*narrow.rows(), *wide.rows()]
        other = next((row for row in rows if row.blocks != rows[0].blocks), None)
        if other is not None:
            what = "dtypes" if other.choice is wide else "rows of a batch"
            yield Finding(
                message=f"equal importance gives blocks {rows[0].blocks} and {other.blocks} in different {what}",
                where=narrow.place(),
                evidence={"token": other.t},
                repro=command_for(subject, "SEL109"),
            )


def planted(subject: Subject) -> Subject:
    select = subject.select
    assert select is not None

    def faulty(importance: Tensor, first_query: int) -> Tensor:
        row = torch.arange(importance.shape[0]).view(-1, 1, 1, 1)
        block = torch.arange(importance.shape[-1])
        return select(importance + 1e-6 * row * block, first_query).clone()

    return replace(subject, select=faulty)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("select",), profile="smoke", fuzzed=("tie to the higher index",)
)
