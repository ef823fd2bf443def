"""NAN108 step-makes-values-not-finite

Detects: a training loop that makes parameters or its loss NaN or infinite, from a start where all is finite.
Matters: every value of the model is lost in one step, and the forward and backward that are looked at are innocent.
Fix: look at the line named: a norm of zero divided by, a log or a root of zero, a mean over nothing.

Example:
    # faulty
    norm = parameter.grad.norm()
    parameter.grad /= norm  # 0 / 0 where no gradient comes
    # correct
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import comparable_pass, lengths_for, listed, placed
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.training import LEARNING_RATE
from nsa_doctor.probes.numerics.step_origin import birth_in_step, first_bad_step
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_SLOWLY = 1e-6  # of the rate, and per unit of gradient: what a step too long has driven away stays finite then
_MORE_ROWS = (4, 8)  # a loss of pairs has none of one row


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = lengths_for(subject)[0]
    sp = built(subject, mode="train", is_randomised=False)
    _require_finite_start(sp, length)
    wild = first_bad_step(subject, length, LEARNING_RATE)
    if wild is None:
        return
    place = callable_place(subject.train_step, sp.module)
    for rows in _MORE_ROWS:
        if attempt(lambda rows=rows: first_bad_step(subject, length, LEARNING_RATE, rows)) is None:
            message = f"step {wild.number} at S={length} makes values not finite on one row, but not on {rows}"
            yield Note(message=message, where=place)
            return
    rate = LEARNING_RATE * _SLOWLY / max(1.0, wild.gradient_at_start)
    found = first_bad_step(subject, length, rate)
    if found is None:
        message = (
            f"step {wild.number} at S={length} makes values not finite at rate {LEARNING_RATE}, but not at {rate:.1g}"
        )
        yield Note(message=message, where=place)
        return
    bad, operation = found.names, ""
    if (origin := birth_in_step(subject, length, rate, found)) is not None:
        operation = f", first in {origin.operation}"
        place = origin.place
    if not place.module and bad:
        place = placed(replace(place, module_class=""), bad, sp.module)
    which = listed(bad) if bad else f"the loss ({found.loss})"
    yield Finding(
        message=f"{which} not finite after step {found.number} of the training loop at S={length}{operation}",
        where=place,
        evidence={"length": length, "step": found.number, "parameters": ",".join(bad), "loss": found.loss},
        control="forward and backward from the start weights are finite",
        repro=command_for(subject, "NAN108"),
    )


def _require_finite_start(sp: BuiltModule, length: int) -> None:
    done = comparable_pass(sp, sp.input(length))
    looked_at = [*dict(sp.module.named_parameters()).values(), done.output, *done.gradients.values()]
    if not all(bool(isfinite(tensor.detach()).all()) for tensor in looked_at):
        raise NotComparableError(f"values are not finite at S={length} before any step")


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
