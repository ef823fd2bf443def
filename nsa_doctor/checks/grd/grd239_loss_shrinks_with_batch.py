"""GRD239 loss-shrinks-with-batch

Detects: a loss whose gradient is half as large where every row stands twice in the batch: a mean that is divided by the
number of rows, or of tokens, once more. That of a mean stays as it is, and that of a sum is twice as large.
Matters: loss and gradients shrink with the batch, so that a larger one trains at a lower rate; runs of several batch
sizes, and losses that are added up, cannot be compared.
Fix: divide once: `reduction="sum"` where the line divides by the batch itself, or no division at all.

Example:
    # faulty
    loss = F.ctc_loss(logits, labels, sizes, lengths) / len(labels)
    # correct
    loss = F.ctc_loss(logits, labels, sizes, lengths)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from nsa_doctor.checks._shared.pair_losses import SEAMS, calls_of_losses
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.divided_losses import Halved, halved_by_rows, of_loss
from nsa_doctor.probes.behaviour.loss_calls import Batch, LossCall, loss_calls
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.stepping import step
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 17, (3, 5)


def run(subject: Subject) -> Iterator[Finding]:
    was_served = False
    for name, seen_with in _losses(subject):
        with unobserved():
            found = attempt(lambda seen_with=seen_with: [seen_with(rows) for rows in _ROWS])
        if isinstance(found, Caught):
            continue
        was_served = True
        halved = [each for each in found if isinstance(each, Halved)]
        if len(halved) == len(_ROWS):
            first = halved[0]
            sizes = f"{first.plain:.4g} of {_ROWS[0]} rows and {first.doubled:.4g} of the same twice"
            yield Finding(
                message=f"the gradient of {name} is {sizes}: it is divided by their number once more than a mean is",
                where=in_subject(first.place, first.sp.module),
                evidence={"loss": name, "num_rows": _ROWS[0]},
                repro=command_for(subject, "GRD239"),
            )
            return
    if not was_served:
        raise NotApplicableError("it offers no loss that could be asked for of rows and of each of them twice")


def _losses(subject: Subject) -> Iterator[tuple[str, Callable[[int], Halved | None]]]:
    """A loss by name, and what is seen of it with so many rows."""
    length = min(_LENGTH, subject.max_length)
    for seam in SEAMS:
        if subject.offers(seam):
            yield seam, lambda rows, seam=seam: _of_seam(subject, seam, rows, length)
    sp = comparable_module(subject)
    for call in calls_of_losses(sp):
        name = f"{call.name}({', '.join(call.takes.values())})"
        yield name, lambda rows, call=call: _of_call(sp, call, rows, length)


def _of_seam(subject: Subject, seam: str, rows: int, length: int) -> Halved | None:
    """In eval(), which draws nothing, where the seam does not switch that itself."""
    sp = built(subject, mode="eval")
    x = sp.input(length, rows)
    if seam == "train_step":
        optimizer = new_optimizer(sp.module, 0.0)
        return halved_by_rows(sp, rows, lambda given: step(sp, optimizer, given).gradients, x, torch.cat((x, x)))
    loss = subject.loss
    assert loss is not None
    return halved_by_rows(sp, rows, lambda given: of_loss(sp, loss(sp.module, given.clone())), x, torch.cat((x, x)))


def _of_call(sp: BuiltModule, call: LossCall, rows: int, length: int) -> Halved | None:
    x = sp.input(length, rows)
    batch = Batch(x=x, lengths=torch.full((rows,), length, device=x.device))
    asked = next(each for made, each in loss_calls(sp, batch) if made.name == call.name and made.takes == call.takes)
    twice = asked.rows(torch.arange(rows, device=x.device).repeat(2))
    return halved_by_rows(sp, rows, lambda given: of_loss(sp, call.answer(sp, given)), asked, twice)


def planted(subject: Subject) -> Subject:
    def divided(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        output: Tensor = subject.forward(module, x)
        loss = mse_loss(output, output.detach() + 1) / len(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return replace(subject, train_step=divided)


CHECK = Check(doc=__doc__, run=run, planted=planted, unless=("stochastic",))
