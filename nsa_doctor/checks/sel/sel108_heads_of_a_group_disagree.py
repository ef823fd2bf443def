"""SEL108 heads-of-a-group-disagree

Detects: heads that share keys and values and do not read the same blocks.
Matters: one choice per group is what makes the method fast: with more, every head loads blocks of its own.
Fix: sum the importance over the heads of a group before choosing, once per group.

Example:
    # faulty
    slots = importance.topk(n).indices  # [B, S, H, n]: every head chooses for itself
    # correct
    slots = importance.unflatten(2, (num_groups, -1)).sum(3).topk(n).indices  # [B, S, G, n]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.choice import Choice, Row, choices
from nsa_doctor.probes.attention.reach import anatomy, values_read
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of


def run(subject: Subject) -> Iterator[Finding]:
    found = list(_choosing_apart(subject))
    if not found and subject.anatomy is not None:
        found = list(_reading_apart(subject))
    yield from found[:1]


def _choosing_apart(subject: Subject) -> Iterator[Finding]:
    """Where there is a choice for each head: those of one group, side by side, must be equal."""
    for choice in choices(subject):
        heads, groups = choice.entries.shape[2], choice.importance.shape[2]
        if heads > groups and heads % groups == 0:
            yield from _apart(subject, choice, heads // groups)


def _apart(subject: Subject, choice: Choice, per_group: int) -> Iterator[Finding]:
    leaders: dict[tuple[int, int, int], Row] = {}
    for row in choice.rows():
        leader = leaders.setdefault((row.row, row.t, row.group // per_group), row)
        if leader.blocks != row.blocks:
            pair = f"heads {leader.group} and {row.group} of one group choose blocks {leader.blocks} and {row.blocks}"
            yield _finding(subject, f"{pair} at token {row.t} of {choice.num_tokens}", choice.place(), row.t)
            return


def _reading_apart(subject: Subject) -> Iterator[Finding]:
    """What the heads really read, by gradient."""
    rules, sp = rules_of(subject), built(subject)
    length = rules.telling_lengths(subject.max_length)[-1]
    x = sp.input(length).requires_grad_()
    inner = anatomy(sp, x)
    groups, positions = inner["v_sel"].shape[2], [length - 1, length - 1 - rules.l_sel // 2]
    read = values_read(inner["selected"], inner["v_sel"], positions) != 0
    apart = "slots" if inner["slots"].shape[2] > groups else "selected"  # what is chosen apart is read apart by right
    for t, heads in zip(positions, read.unflatten(1, (groups, -1)), strict=True):
        differ = (heads != heads[:, :1]).any(-1).nonzero()
        if len(differ):
            group, head = differ[0].tolist()
            message = f"heads 0 and {head} of group {group} read different tokens for token {t} of {length}"
            yield _finding(subject, message, origin(subject, sp.module, lambda: anatomy(sp, x)[apart]), t)
            return


def _finding(subject: Subject, message: str, where: Place, t: int) -> Finding:
    return Finding(message=message, where=where, evidence={"token": t}, repro=command_for(subject, "SEL108"))


def planted(subject: Subject) -> Subject:
    choose = subject.choose
    assert choose is not None

    def faulty(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        slots, importance = choose(module, x)
        other = torch.where(slots == slots.amax(-1, keepdim=True), 0, slots)
        return torch.stack((slots, other), dim=3).flatten(2, 3), importance

    return replace(subject, choose=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted)
