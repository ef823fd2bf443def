"""GRD205 step-changes-nothing

Detects: steps of a training loop that leave all parameters, or some that have a gradient, as they were, or that move
    them at a learning rate too small to matter. An optimizer of the loop's own is a note, and is judged like any.
Matters: the run costs what training costs and trains nothing, or a part of the model not at all.
Fix: step after backward and clear gradients after that or before; give the optimizer the parameters the model uses.

Example:
    # faulty
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    # correct
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.moving_steps import NUM_STEPS, steps_that_move
from nsa_doctor.checks._shared.stepped import holder_text, optimizer_notes, too_slow, why_nothing_moves
from nsa_doctor.checks._shared.unlearned import lengths_for, listed, placed, trainable
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.step_end import end_of_step
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_RATE = 0.1


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = lengths_for(subject)[0]
    sp, optimizer, steps, moved = steps_that_move(subject, length, _RATE)
    names = [name for name, _ in trainable(sp.module)]
    if not names:
        return
    still = [name for name in names if name not in moved and any(_should_move(name, taken) for taken in steps)]
    replaced = sorted(set().union(*(taken.replaced for taken in steps)))
    place = next((taken.place for taken in steps if taken.place.file), Place())
    if replaced:
        message = f"{listed(replaced)} of {len(names)} put in place of those the optimizer holds, at S={length}"
        place, still = Place(), replaced
    elif slow := too_slow(steps):
        message = f"{NUM_STEPS} training steps at S={length} {slow}"
    elif not moved:
        if not any(taken.num_calls for taken in steps):
            with unobserved():
                place = end_of_step(sp, optimizer, sp.input(length))
        message = f"no parameter moves in {NUM_STEPS} training steps at S={length}: {why_nothing_moves(steps)}"
    elif still:
        message = f"{listed(still)} of {len(names)} do not move in {NUM_STEPS} steps at S={length}, with gradients"
        message += (held := holder_text(still, steps))
        place = next((taken.made_at for taken in steps if held and taken.made_at.file), place)
    else:
        notes = optimizer_notes(steps, may_have_own=subject.loop is not None)
        yield from (Note(message=note, where=place) for note in notes)
        return
    yield Finding(
        message=message,
        where=placed(place, still or [""], sp.module),
        evidence={"length": length, "parameters": ",".join(still), "num_calls": sum(each.num_calls for each in steps)},
        control=f"{len(moved)} other parameters move" if moved and still else "",
        repro=command_for(subject, "GRD205"),
    )


def _should_move(name: str, taken: Step) -> bool:
    """Whether plain descent by this gradient would change some value, rounding considered."""
    gradient, value = taken.gradients.get(name), taken.before[name]
    return gradient is not None and not torch.equal(value - _RATE * gradient, value)


def planted(subject: Subject) -> Subject:
    def cleared_too_soon(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = subject.forward(module, x).square().mean()
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        return loss

    return replace(subject, train_step=cleared_too_soon)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke")
