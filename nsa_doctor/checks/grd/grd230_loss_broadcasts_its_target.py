"""GRD230 loss-broadcasts-its-target

Detects: a loss that broadcasts its answers and its targets to each other, as [B, 1] and [B] to [B, B], and sums or
averages over all of these pairs: `mse_loss` and the like of different sizes, and plain arithmetic. So do tensors of
different numbers of axes whose rows do not meet, as [B, 1, S] and totals [B, 1] to [B, B, S]. It has to be seen in
a training step, in a loss of ids or in a loss of targets by a method, with every number of rows. Pairs that are asked
for by an axis (`x[:, None] - y`) and those of a tensor with itself are left alone.
Matters: each answer is drawn to the targets of all rows, so to their mean; the loss falls, and nothing is learnt of the
rows themselves.
Fix: give both one shape: `values.squeeze(-1)`, or `targets.unsqueeze(-1)`.

Example:
    # faulty
    loss = (self.head(states) - rewards).square().mean()  # [B, 1] - [B]
    shares = counts / counts.sum(-1)  # [B, 1, S] / [B, 1]
    # correct
    loss = (self.head(states).squeeze(-1) - rewards).square().mean()
    shares = counts / counts.sum(-1, keepdim=True)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.pair_losses import SEAMS, calls_of_losses, pairs_in_call, pairs_in_seam
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.broadcast_losses import Broadcast
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    seams = [seam for seam in SEAMS if subject.offers(seam)]
    was_served, refusals = False, []
    for seam in seams:
        try:
            found = pairs_in_seam(subject, seam)
        except NotComparableError as refused:
            refusals.append(refused)
            continue
        was_served = True
        if found is not None:
            yield _finding(sp, found, seam)
            return
    for call in calls_of_losses(sp):
        is_served, found = pairs_in_call(sp, call)
        was_served |= is_served
        if found is not None:
            yield _finding(sp, found, f"{call.name}({', '.join(call.takes.values())})")
            return
    if refusals and not was_served:
        raise refusals[0]
    if not was_served:
        raise NotApplicableError("it offers no training step and no loss that could be asked for")


def _finding(sp: BuiltModule, found: Broadcast, loss: str) -> Finding:
    first, second = (list(shape) for shape in found.shapes)
    return Finding(
        message=f"{found.operation} broadcasts {first} and {second} to {list(found.result)}, and the loss of {loss} is "
        "taken over all of them: what each row has meets that of every other",
        where=in_subject(found.place, sp.module),
        evidence={"loss": loss, "operation": found.operation, "num_pairs": found.result.numel()},
        repro=command_for(sp.subject, "GRD230"),
    )


def planted(subject: Subject) -> Subject:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        values = subject.forward(module, x).flatten(1).mean(1, keepdim=True)
        rewards = x.flatten(1).float().cos().sum(1)
        loss = (values - rewards.to(values)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
