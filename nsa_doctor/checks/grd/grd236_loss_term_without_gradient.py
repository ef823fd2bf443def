"""GRD236 loss-term-without-gradient

Detects: a number that a loss adds to another and that has no gradient, though it was computed from values that have
    one: detached, or computed without gradients, before it was reduced. A weight that is added in place of multiplied.
Matters: the term is logged, and goes down with the others or not, and trains nothing: a commitment, balance or
    auxiliary loss that might as well not be there.
Fix: detach the other side, as in `(z - codes.detach()).square()`; a number that is only to be seen is detached itself.

Example:
    # faulty
    commitment = (z.detach() - codes.detach()).square().mean()
    # correct
    commitment = (z - codes.detach()).square().mean()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.every_loss import first_seen
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.loss_terms import AddedWeight, dead_terms
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen(subject, dead_terms)
    if seen is None:
        return
    asked, each = seen
    if isinstance(each, AddedWeight):
        said, place = f"{each.name}, the number {each.value:g}: ", each.place
        said += "as the weight of a term, by which it is multiplied, it would do something"
    else:
        said, place = f"a term of {each.value:.2g} that has no gradient: the way back ends here, ", each.cut
        said += f"and it is added at {each.added.short_line}"
    yield Finding(
        message=f"{asked.name} adds {said}",
        where=in_subject(place, asked.sp.module),
        evidence={"loss": asked.name, "term": each.value},
        repro=command_for(subject, "GRD236"),
    )


def planted(subject: Subject) -> Subject:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        output = subject.forward(module, x)
        smooth = output.detach().diff(dim=1).square().mean()
        loss = output.square().mean() + 0.1 * smooth
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
