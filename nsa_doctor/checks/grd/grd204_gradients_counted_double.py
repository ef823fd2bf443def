"""GRD204 gradients-counted-double

Detects: a training loop whose optimizer is given gradients that still hold those of the step before, or those alone, or
    those of several backward passes summed where the loss is their mean.
Matters: each step follows the sum of all batches so far, or a batch that is gone, or is too long; the loss falls at
    first, then swings or diverges.
Fix: call `optimizer.zero_grad()` once per step, before backward, for every parameter that is trained; divide each loss
    by the number of backward passes of a step.

Example:
    # faulty
    loss.backward()
    optimizer.step()
    # correct
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.accumulated import left_over, summed
from nsa_doctor.checks._shared.stepped import differs, share_of
from nsa_doctor.checks._shared.unlearned import lengths_for, listed
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.stepping import Step, first_step, step, twin
from nsa_doctor.probes.model.training import LEARNING_RATE, new_optimizer
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = built(subject, mode="train")
    length = lengths_for(subject)[0]
    optimizer = new_optimizer(sp.module)
    first = step(sp, optimizer, sp.input(length))
    twins = twin(sp), twin(sp)
    x = sp.input(length, seed=subject.seed + 1)
    second = step(sp, optimizer, x)
    if first.is_ahead and second.is_ahead:
        message = f"the optimizer steps before backward at S={length}, with gradients of the batch before or with none"
        yield Finding(
            message=message, where=second.place, evidence={"length": length}, repro=command_for(subject, "GRD204")
        )
        return
    found = list(_stale(subject, first, second, x, twins) if subject.loop is None else left_over(subject, length))
    yield from found or summed(subject, length)


def _stale(
    subject: Subject, first: Step, second: Step, x: Tensor, twins: tuple[BuiltModule | None, BuiltModule | None]
) -> Iterator[Finding]:
    fresh, repeated = twins
    if fresh is None or repeated is None:
        raise NotComparableError("the module cannot be copied, so no step can be taken twice")
    alone, once_more = first_step(fresh, x, LEARNING_RATE), first_step(repeated, x, LEARNING_RATE)
    if not (second.is_made and alone.is_made and once_more.is_made):
        return
    length = x.shape[1]
    if not all(math.isfinite(taken.squared_gradient) for taken in (first, second, alone)):
        raise NotComparableError(f"gradients are not finite at S={length}, so nothing can be compared with them")
    used = [
        name for name in alone.gradients if name in second.gradients and (name in second.held or not second.num_calls)
    ]
    stale = [name for name in used if differs(name, second, alone, once_more)]
    if stale:
        share = share_of(stale, first.gradients, second, alone)
        of_first = f"; {share:.2g} times the first step's is in it" if math.isfinite(share) and share > 0 else ""
        yield Finding(
            message=f"the second step at S={length} uses gradients that a first step on the same batch does not give: "
            f"{listed(stale)} of {len(alone.gradients)}{of_first}",
            where=second.place,
            evidence={"length": length, "parameters": ",".join(stale), "share_of_first": share},
            control="the same second step on a copy without gradients agrees with itself",
            repro=command_for(subject, "GRD204"),
        )


def planted(subject: Subject) -> Subject:
    def never_cleared(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = subject.forward(module, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=never_cleared)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke")
