"""NAN108 step-makes-values-not-finite

Detects: a training loop that makes parameters or its loss NaN or infinite, from a start where all is finite.
Matters: every value of the model is lost in one step, and the forward and backward that are looked at are innocent.
Fix: look at the line named: a norm of zero divided by, a log or a root of zero, a mean over nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.checks.unlearned import comparable_pass, lengths_for, listed, placed
from nsa_doctor.finding import Finding, Note
from nsa_doctor.probes.finite import isfinite
from nsa_doctor.probes.places import callable_place
from nsa_doctor.probes.specimen import Specimen, specimen
from nsa_doctor.probes.stepborn import birth_in_step
from nsa_doctor.probes.stepping import Step, step
from nsa_doctor.probes.training import LEARNING_RATE, new_optimizer
from nsa_doctor.repro import again
from nsa_doctor.runner import NotComparableError
from nsa_doctor.subject import Subject

_NUM_STEPS = 4
_RATES = (LEARNING_RATE, LEARNING_RATE * 1e-6)  # what a step too long has driven there stays finite at the second


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = lengths_for(subject)[0]
    sp = specimen(subject, mode="train", is_randomised=False)
    _require_finite_start(sp, length)
    found = {rate: _first_bad(subject, length, rate) for rate in _RATES}
    number, taken, module = found[_RATES[-1]] or (0, None, sp.module)
    if taken is None and (wild := found[_RATES[0]]) is not None:
        message = f"step {wild[0]} at S={length} makes values not finite at rate {_RATES[0]}, none does at {_RATES[1]}"
        yield Note(message=message, where=callable_place(subject.train_step, sp.module))
    if taken is None:
        return
    bad, operation = _bad(taken), ""
    place = callable_place(subject.train_step, module)
    if (birth := birth_in_step(subject, length, _RATES[-1], number, tuple(bad))) is not None:
        operation = f", first in {birth.operation}"
        place = birth.place
    if not place.module and bad:
        place = placed(replace(place, module_class=""), bad, module)
    which = listed(bad) if bad else f"the loss ({taken.loss})"
    yield Finding(
        message=f"{which} not finite after step {number} of the training loop at S={length}{operation}",
        where=place,
        evidence={"length": length, "step": number, "parameters": ",".join(bad), "loss": taken.loss},
        control="forward and backward from the start weights are finite",
        repro=again(subject, "NAN108"),
    )


def _require_finite_start(sp: Specimen, length: int) -> None:
    done = comparable_pass(sp, sp.input(length))
    looked_at = [*dict(sp.module.named_parameters()).values(), done.output, *done.gradients.values()]
    if not all(bool(isfinite(tensor.detach()).all()) for tensor in looked_at):
        raise NotComparableError(f"values are not finite at S={length} before any step")


def _first_bad(subject: Subject, length: int, rate: float) -> tuple[int, Step, nn.Module] | None:
    """The first of some steps after which something is not finite: its number, the step, the module."""
    sp = specimen(subject, mode="train", is_randomised=False)
    optimizer = new_optimizer(sp.module, rate)
    for number in range(1, _NUM_STEPS + 1):
        taken = step(sp, optimizer, sp.input(length, seed=subject.seed + number - 1))
        if _bad(taken) or not math.isfinite(taken.loss):
            return number, taken, sp.module
    return None


def _bad(taken: Step) -> list[str]:
    return [name for name, value in taken.after.items() if not bool(isfinite(value).all())]


def planted(subject: Subject) -> Subject:
    def rounds_to_unit_norm(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = subject.forward(module, x).square().mean()
        loss.backward()
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad / (0 * parameter.grad).norm()
        optimizer.step()
        return loss

    return replace(subject, train_step=rounds_to_unit_norm)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke", blocked_by=("NAN101",))
