"""GRD206 step-climbs

Detects: a training step after which the loss on the very same batch is higher, in proportion to the learning rate; a
    loop whose steps go along the gradient of the loss that it returns, or at a rate below zero. Where what is returned
    falls with what is differentiated, as a reward does, nothing is said.
Matters: descent by a small enough step lowers the loss; one that climbs follows a sign that is flipped.
Fix: look for a minus in the loss, in the update or in a gradient hook that does not belong there.

Example:
    # faulty
    parameter.add_(parameter.grad, alpha=rate)
    # correct
    parameter.add_(parameter.grad, alpha=-rate)
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.checks._shared.uphill import uphill
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.stepping import Step, first_step, twin
from nsa_doctor.subject.contract import Subject

_SHARE = 1e-3  # of the loss, that a step of descent should take off
_LEAST = 0.05  # of what is due at the whole rate: far above rounding, which is some units of the last place
_SMALLEST_RATIO, _LARGEST_RATIO = math.sqrt(2), 2 * math.sqrt(2)  # half the rate, half the climb


def run(subject: Subject) -> Iterator[Finding]:
    length = lengths_for(subject)[0]
    if subject.loop is not None:
        yield from uphill(subject, length)
        return
    sp = _stepping(subject, length)
    x = sp.input(length)
    first = _step(sp, x, 0.0)
    if not first.squared_gradient or not first.loss:
        return
    if not math.isfinite(first.loss) or not math.isfinite(first.squared_gradient):
        raise NotComparableError(f"loss or gradient are not finite at S={length}")
    due = _SHARE * abs(first.loss)
    rate = due / first.squared_gradient
    whole, half = (_climb(sp, x, each) for each in (rate, rate / 2))
    if not math.isfinite(whole + half):
        raise NotComparableError(f"the loss is not finite after one step at rate {rate:.2g}")
    if half > _LEAST * due and _SMALLEST_RATIO <= whole / half <= _LARGEST_RATIO:
        yield Finding(
            message=f"after one step at rate {rate:.2g} the loss on the same batch rises from {first.loss:.6g} to "
            f"{first.loss + whole:.6g} at S={length}, and by half as much at half the rate",
            where=first.place,
            evidence={"length": length, "rate": rate, "loss": first.loss, "climb": whole},
            repro=command_for(subject, "GRD206"),
        )


def _stepping(subject: Subject, length: int) -> BuiltModule:
    """The module in float64 where the step takes that too, and not the forward alone; else in its own dtype."""
    wide = comparable_module(subject, mode="train")
    if wide.dtype == subject.dtype:
        return wide
    with unobserved():
        tried = attempt(lambda: _step(wide, wide.input(length), 0.0))
    return built(subject, mode="train") if isinstance(tried, Caught) else wide


def _climb(sp: BuiltModule, x: Tensor, rate: float) -> float:
    """What a step at this rate adds to the loss of its own batch."""
    stepped = twin(sp)
    if stepped is None:
        raise NotComparableError("the module cannot be copied, so no step can be taken twice")
    before = first_step(stepped, x, rate)
    return first_step(stepped, x, 0.0).loss - before.loss


def _step(sp: BuiltModule, x: Tensor, rate: float) -> Step:
    copied = twin(sp)
    return first_step(sp if copied is None else copied, x, rate)


def planted(subject: Subject) -> Subject:
    def uphill(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = subject.forward(module, x).square().mean()
        (-loss).backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=uphill)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke", blocked_by=("GRD204",))
