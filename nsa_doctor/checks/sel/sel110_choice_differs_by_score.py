"""SEL110 choice-differs-by-score

Detects: a choice that leaves out a block whose importance is greater than that of one it takes, or that takes fewer
than it may; the importance is computed again from the queries and compressed keys, where these can be seen.
Matters: the model attends to the wrong part of its past and trains nevertheless, only worse.
Fix: sum probabilities over the overlap of the two kinds of blocks and over the group's heads, then take the best.

Example:
    # faulty
    importance = scores.sum(2)  # of scores, which one head may dominate
    # correct
    importance = scores.softmax(-1).sum(2)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.choosing import faults
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.choice import Choice, Row, choices, chosen
from nsa_doctor.probes.attention.equations import attention_weights, importance
from nsa_doctor.probes.attention.reach import anatomy
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_ROUNDING = 64  # units in the last place by which sums of some hundred probabilities may differ


def run(subject: Subject) -> Iterator[Finding]:
    found = [_recomputed(subject)] if subject.choose is not None and subject.anatomy is not None else []
    yield from faults(subject, "SEL110", _worse, found + choices(subject))


def _recomputed(subject: Subject) -> Choice:
    """The choice of one forward pass beside an importance computed from its queries and compressed keys."""
    rules, sp = rules_of(subject), comparable_module(subject)
    length = rules.telling_lengths(subject.max_length)[-1]
    x = sp.input(length)
    with torch.no_grad():
        inner = anatomy(sp, x)
    q, k = inner["q"].double(), inner["k_cmp"].double()
    mask = torch.tensor([[block in rules.visible(t) for block in range(k.shape[1])] for t in range(length)])
    weights = attention_weights(q, k, mask[None, :, None].to(q.device))
    own = importance(weights, k.shape[2], length, rules)
    return replace(chosen(sp, x), importance=own.cpu().to(getattr(torch, sp.dtype)))


def _worse(row: Row) -> str | None:
    rules, scores = row.choice.rules, row.scores
    due = rules.best(scores, row.t)
    taken = [block for block in row.blocks if block in rules.candidates(row.t)]
    if len(taken) < len(due):
        return f"hold {len(taken)} blocks although {len(due)} may be chosen"
    missed, instead = set(due) - set(taken), set(taken) - set(due)
    if not missed or not instead:
        return None
    best, worst = max(missed, key=lambda j: scores[j]), min(instead, key=lambda j: scores[j])
    given = torch.float32 if row.choice.source == "select" else row.choice.importance.dtype  # exact in what it comes in
    slack = _ROUNDING * torch.finfo(given).eps * max(scores)
    if scores[best] - scores[worst] <= slack:
        return None
    return f"take block {worst} of importance {scores[worst]:.3g} and not block {best} of {scores[best]:.3g}"


def planted(subject: Subject) -> Subject:
    choose = subject.choose
    assert choose is not None

    def faulty(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        _, scores = choose(module, x)
        assert subject.select is not None
        return subject.select(1 / (1 + scores), 0).clone(), scores

    return replace(subject, choose=faulty)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("SEL101", "SEL102", "SEL104", "SEL105", "SEL106", "SEL107", "SEL112"),
    fuzzed=("not the best by score", "too few"),
)
