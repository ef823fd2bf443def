"""SEL111 choice-depends-on-batch-neighbours

Detects: a row of a batch that chooses other blocks than it does alone.
Matters: results depend on what else is in the batch: evaluation cannot be repeated and rows leak into each other.
Fix: rank within one row, query and group; look for a reduction or a threshold over the batch dimension.

Example:
    # faulty
    is_chosen = importance > importance.mean()  # over all rows of the batch
    # correct
    is_chosen = importance > importance.mean(-1, keepdim=True)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.attention.choice import Choice, Row, chosen, made_up, selected
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_ROUNDING = 64  # units in the last place by which sums of some hundred probabilities may differ


def run(subject: Subject) -> Iterator[Finding]:
    pairs = [*_by_select(subject), *_by_choose(subject)]
    if not pairs:
        raise NotApplicableError(offers_no(("select", "choose")))
    for together, alone in pairs:
        last = together.entries.shape[0] - 1
        own = [row for row in together.rows() if row.row == last]
        differing = [(a, b) for a, b in zip(own, alone.rows(), strict=True) if not _alike(a, b)]
        if differing:
            row, by_itself = differing[0]
            yield Finding(
                message=f"{len(differing)} of {len(own)} choices of row {last} are not those of the row alone: blocks "
                f"{row.blocks} and {by_itself.blocks} at token {row.t} of {together.num_tokens}",
                where=together.place(),
                evidence={"choices": len(differing), "of": len(own), "token": row.t},
                repro=command_for(subject, "SEL111"),
            )
            return


def _by_select(subject: Subject) -> Iterator[tuple[Choice, Choice]]:
    rules = rules_of(subject)
    first = rules.n_sel * rules.l_sel + rules.l_sel
    scores = made_up(rules, 5, first, subject.seed, rows=3)
    together, alone = selected(subject, scores, first), selected(subject, scores[-1:], first)
    if together is not None and alone is not None:
        yield together, alone


def _by_choose(subject: Subject) -> Iterator[tuple[Choice, Choice]]:
    if subject.choose is not None:
        sp = comparable_module(subject)
        x = sp.input(rules_of(subject).telling_lengths(subject.max_length)[-1], 2)
        yield chosen(sp, x), chosen(sp, x[-1:])


def _alike(row: Row, other: Row) -> bool:
    """The same blocks, or others of the same importance."""
    if row.blocks == other.blocks:
        return True
    scores = other.scores
    first, second = (sorted(scores[block] for block in each.blocks if block < len(scores)) for each in (row, other))
    slack = _ROUNDING * torch.finfo(other.choice.importance.dtype).eps * max(scores)
    return len(first) == len(second) and all(abs(a - b) <= slack for a, b in zip(first, second, strict=True))


def planted(subject: Subject) -> Subject:
    choose = subject.choose
    assert choose is not None

    def faulty(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        slots, scores = choose(module, x)
        return slots[:1].expand_as(slots).clone(), scores

    return replace(subject, choose=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, fuzzed=("depends on others",))
