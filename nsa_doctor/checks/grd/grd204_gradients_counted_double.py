"""GRD204 gradients-counted-double

Detects: a training loop whose optimizer is given gradients that still hold those of the step before.
Matters: each step follows the sum of all batches so far; the loss falls at first, then swings or diverges.
Fix: call `optimizer.zero_grad()` once per step, before backward, for every parameter that is trained.

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
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for, listed
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.stepping import Step, first_step, step, twin
from nsa_doctor.probes.model.training import LEARNING_RATE, new_optimizer
from nsa_doctor.subject.contract import Subject

_NOISE_FACTOR = 10.0


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject, mode="train")
    length = lengths_for(subject)[0]
    optimizer = new_optimizer(sp.module)
    first = step(sp, optimizer, sp.input(length))
    fresh, repeated = twin(sp), twin(sp)
    if fresh is None or repeated is None:
        raise NotComparableError("the module cannot be copied, so no step can be taken twice")
    x = sp.input(length, seed=subject.seed + 1)
    second = step(sp, optimizer, x)
    alone, once_more = first_step(fresh, x, LEARNING_RATE), first_step(repeated, x, LEARNING_RATE)
    if not (second.num_calls and alone.num_calls and once_more.num_calls):
        return
    if not all(math.isfinite(taken.squared_gradient) for taken in (first, second, alone)):
        raise NotComparableError(f"gradients are not finite at S={length}, so nothing can be compared with them")
    stale = [name for name in alone.gradients if _differs(name, second, alone, once_more)]
    if stale:
        share = _share(stale, first.gradients, second, alone)
        of_first = f"; {share:.2g} times the first step's is in it" if math.isfinite(share) and share > 0 else ""
        yield Finding(
            message=f"the second step at S={length} uses gradients that a first step on the same batch does not give: "
            f"{listed(stale)} of {len(alone.gradients)}{of_first}",
            where=second.place,
            evidence={"length": length, "parameters": ",".join(stale), "share_of_first": share},
            control="the same second step on a copy without gradients agrees with itself",
            repro=again(subject, "GRD204"),
        )


def _differs(name: str, second: Step, alone: Step, once_more: Step) -> bool:
    """Whether a gradient is another than without a step before, beyond what repeating changes."""
    change = float((second.gradients[name] - alone.gradients[name]).double().norm())
    return not (change <= _NOISE_FACTOR * float((once_more.gradients[name] - alone.gradients[name]).double().norm()))


def _share(stale: list[str], first: Mapping[str, Tensor], second: Step, alone: Step) -> float:
    """How many times the first step's gradient the difference holds, by projection."""
    product = squares = 0.0
    for name in stale:
        if name in first:
            old = first[name].double()
            product += float(((second.gradients[name] - alone.gradients[name]).double() * old).sum())
            squares += float(old.square().sum())
    return product / squares if squares else math.nan


def planted(subject: Subject) -> Subject:
    def never_cleared(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = subject.forward(module, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=never_cleared)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke")
