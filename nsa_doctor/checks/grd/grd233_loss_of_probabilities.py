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

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.checks._shared.pair_losses import SEAMS, batch_of, call_of_seam, calls_of_losses, targets_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.softened_losses import SoftenedLoss, softened_losses
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 17, (5, 1)


def run(subject: Subject) -> Iterator[Finding]:
    was_served = False
    for loss, sp, call in _losses(subject):
        found = softened_losses(sp, call)
        was_served = was_served or not isinstance(found, Caught)
        if not isinstance(found, Caught) and found:
            yield _finding(subject, sp, loss, found[0])
            return
    if not was_served:
        seams = [seam for seam in SEAMS if subject.offers(seam)]
        if seams:
            raise NotComparableError(f"{seams[0]} raised for {_ROWS[0]} rows and for one")
        raise NotApplicableError("it offers no training step and no loss that could be asked for")


def _losses(subject: Subject) -> Iterator[tuple[str, BuiltModule, Callable[[], Any]]]:
    """What a loss is called, and calls of it: those of the seams, and the module's own with targets of any shape."""
    for seam in SEAMS:
        if subject.offers(seam):
            for rows in _ROWS:
                yield seam, *call_of_seam(subject, seam, rows, min(_LENGTH, subject.max_length))
    sp = comparable_module(subject, mode="train")
    for loss in (each for each in calls_of_losses(sp) if not each.of_answers):  # these take what they are made for
        batch = batch_of(sp, _ROWS[0])
        for targets in targets_for(sp, batch):
            asked = replace(batch, targets=targets)
            yield f"{loss.name}({', '.join(loss.takes.values())})", sp, partial(loss.answer, sp, asked)


def _finding(subject: Subject, sp: BuiltModule, loss: str, each: SoftenedLoss) -> Finding:
    at = f"; {each.function} is called at {each.place.short_line}" if each.made is not None else ""
    return Finding(
        message=f"{each.function} in {loss} is given {each.given}: {each.takes}{at}",
        where=in_subject(each.made or each.place, sp.module),
        evidence={"loss": loss, "operation": each.function},
        repro=command_for(subject, "GRD233"),
    )


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
