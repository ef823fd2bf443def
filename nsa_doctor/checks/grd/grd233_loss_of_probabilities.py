"""GRD233 loss-of-probabilities

Detects: a training step or a loss that gives probabilities to a function which takes scores or logarithms:
`cross_entropy` behind a softmax, `binary_cross_entropy_with_logits` behind a sigmoid, `Categorical(logits=...)` of
probabilities, `nll_loss` or `kl_div` of what no logarithm was taken of, `nll_loss` of a layer's scores.
Matters: softmax of probabilities is nearly flat, so that the loss cannot fall below a bound and gradients are a small
part of what they should be; without a logarithm it is no likelihood, and has no bound at all. Both train, and badly.
Fix: give scores to `cross_entropy` and to what ends in `_with_logits`; `log_softmax` to `nll_loss` and `kl_div`.

Example:
    # faulty
    loss = F.cross_entropy(self.head(x).softmax(-1), targets)
    # correct
    loss = F.cross_entropy(self.head(x), targets)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.checks._shared.every_loss import first_seen
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.loss_calls import LossCall
from nsa_doctor.probes.behaviour.softened_losses import softened_losses
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen(subject, softened_losses, _takes_targets)
    if seen is None:
        return
    asked, each = seen
    at = f"; {each.function} is called at {each.place.short_line}" if each.made is not None else ""
    yield Finding(
        message=f"{each.function} in {asked.name} is given {each.given}: {each.takes}{at}",
        where=in_subject(each.made or each.place, asked.sp.module),
        evidence={"loss": asked.name, "operation": each.function},
        repro=command_for(subject, "GRD233"),
    )


def _takes_targets(loss: LossCall) -> bool:
    """Those of answers take what they are made for."""
    return "targets" in loss.takes and not loss.of_answers


def planted(subject: Subject) -> Subject:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = subject.forward(module, x).flatten(2).mean(1).float()
        loss = cross_entropy(scores.softmax(-1), torch.arange(len(x), device=x.device) % scores.shape[-1])
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"), explained_by=("GRD207",))
