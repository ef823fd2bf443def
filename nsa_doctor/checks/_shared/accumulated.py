"""Gradients of several backward passes that a training loop sums before it steps: are they weighed as its loss is?"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nsa_doctor.checks._shared.stepped import differs
from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.model.stepping import Step, step
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

_ROWS = 4
_MOST_CALLS = 16
_LIKENESS = 1e-2


def summed(subject: Subject, length: int) -> Iterator[Finding | Note]:
    """A finding where several backward passes count otherwise than the `loss` on offer; a note where there is none.

    A loop may take a batch apart, or step at every so many calls: it is called with the same batch until it steps.
    Without a loss, rows that are copies of one should give the gradient of that one.
    """
    x = built(subject, mode="train").input(length, batch=_ROWS)
    loss = subject.loss is not None
    x = x if loss else x[:1].expand(_ROWS, *x.shape[1:]).clone()
    gradients, count, place = _taken(subject, x)
    if count < 2:
        return
    right, alone, _ = (_of_loss(subject, x), 1, place) if loss else _taken(subject, x[:1])
    factor = times(gradients, right)
    wrong = [each for each in (count / alone, alone / count) if abs(factor / each - 1) <= _LIKENESS]
    if not wrong or count == alone:
        return
    of = "that of the loss" if loss else "that of one row alone, given copies of it"
    message = f"{count} backward passes before a step at S={length} give {factor:.3g} times the gradient, {of}"
    if not loss:
        yield Note(message=f"{message}: right where the loss is a sum over rows", where=place)
        return
    evidence: dict[str, int | float] = {"length": length, "num_backwards": count, "factor": factor}
    yield Finding(message=message, where=place, evidence=evidence, repro=command_for(subject, "GRD204"))


def left_over(subject: Subject, length: int) -> Iterator[Finding]:
    """Gradients of a step before that a loop steps with again: the step is another where they are cleared by hand."""
    plain, cleared, again = (_second(subject, length, is_cleared=each) for each in (False, True, True))
    if not (plain.num_calls and cleared.num_calls):
        return
    used = [name for name in cleared.gradients if name in plain.gradients and name in plain.held]
    stale = [name for name in used if differs(name, plain, cleared, again)]
    if stale:
        message = f"the second step at S={length} uses gradients that it does not when those of the first are cleared "
        message += f"by hand: {listed(stale)} of {len(cleared.gradients)}"
        evidence: dict[str, int | str] = {"length": length, "parameters": ",".join(stale)}
        repro = command_for(subject, "GRD204")
        yield Finding(message=message, where=plain.place, evidence=evidence, repro=repro)


def _second(subject: Subject, length: int, *, is_cleared: bool) -> Step:
    begun = BegunLoop.of(subject)
    begun.step([begun.sp.input(length)], subject.seed)
    if is_cleared:
        begun.sp.module.zero_grad(set_to_none=True)
    return begun.step([begun.sp.input(length, seed=subject.seed + 1)], subject.seed)


def _taken(subject: Subject, x: Tensor) -> tuple[Mapping[str, Tensor], int, Place]:
    """The gradients of the first step that is made, how many backward passes they hold, and the step's line."""
    sp = built(subject, mode="train")
    optimizer, count = new_optimizer(sp.module, 0.0), 0
    for _ in range(_MOST_CALLS):
        taken = step(sp, optimizer, x)
        count += taken.num_backwards - taken.num_late
        if taken.num_calls == 1 and not taken.num_late:
            return taken.gradients, count, taken.place
        if taken.is_made:
            break
    return {}, 0, Place()


def _of_loss(subject: Subject, x: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss that the subject offers, of the whole batch at once."""
    sp, loss = built(subject, mode="train"), subject.loss
    assert loss is not None
    seed_everything(subject.seed)
    with preserved_state(), torch.enable_grad():
        ask("the loss", lambda: loss(sp.module, x).backward(), sp.module)
    return {name: p.grad for name, p in sp.module.named_parameters() if p.grad is not None}


def times(gradients: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """How many times as long as the right ones these gradients are; NaN where they point another way."""
    if not gradients or gradients.keys() != right.keys():
        return math.nan
    pairs = [(gradients[name].double(), value.double()) for name, value in right.items()]
    squares = sum(float(value.square().sum()) for _, value in pairs)
    factor = sum(float((taken * value).sum()) for taken, value in pairs) / squares if squares else math.nan
    off = sum(float((taken - factor * value).square().sum()) for taken, value in pairs)
    return factor if off <= _LIKENESS**2 * factor**2 * squares else math.nan
