"""GRD235 loss-term-counted-twice

Detects: a loss that computes one of its terms twice: the same function of the same scores and targets, by two calls.
Matters: the second was meant to be another (of the transposed scores, of another head, of other targets), which is
    never trained, and the first weighs twice as much.
Fix: give the second call what it is named for, as in `cross_entropy(logits.t(), labels)`.

Example:
    # faulty
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits, labels)) / 2
    # correct
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from nsa_doctor.checks._shared.every_loss import first_seen
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.loss_terms import same_terms
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen(subject, same_terms)
    if seen is None:
        return
    asked, each = seen
    where = "both here" if each.first.line == each.place.line else f"here, and at {each.first.short_line}"
    yield Finding(
        message=f"{asked.name} computes {each.function} of the same values twice: {where}",
        where=in_subject(each.place, asked.sp.module),
        evidence={"loss": asked.name, "operation": each.function},
        repro=command_for(subject, "GRD235"),
    )


def planted(subject: Subject) -> Subject:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        output = subject.forward(module, x)
        wanted = torch.zeros_like(output[:, 1:])
        forwards = mse_loss(output[:, 1:], wanted)
        backwards = mse_loss(output[:, 1:], wanted)
        loss = forwards + backwards
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
