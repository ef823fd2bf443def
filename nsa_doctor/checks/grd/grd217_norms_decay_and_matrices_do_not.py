"""GRD217 norms-decay-and-matrices-do-not

Detects: a training loop whose optimizer has weight decay for scales or biases, and for no matrix of the model.
Matters: the groups are the wrong way round: what should be held small grows, and scales of norms are drawn to zero.
Fix: give the decay to parameters of two dimensions and more, and none to the others.

Example:
    # faulty
    groups = [{"params": matrices, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.1}]
    # correct
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsa_doctor.checks._shared.planted_steps import descent
from nsa_doctor.checks._shared.unlearned import lengths_for, listed
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop


def run(subject: Subject) -> Iterator[Finding]:
    with calls_of(torch.optim.Optimizer, "__init__", Places(FrameFilter(subject.packages))) as made:
        begun = BegunLoop.of(subject)
    decays = _decays(begun, subject)
    parameters = dict(begun.sp.module.named_parameters())
    matrices = [name for name in decays if parameters[name].ndim > 1]
    others = [name for name in decays if parameters[name].ndim <= 1 and decays[name]]
    if not matrices or not others or any(decays[name] for name in matrices):
        return
    place = made[0] if made and made[0].file else begun.place_of(begun.loop.step)
    yield Finding(
        message=f"weight decay of {max(decays.values()):g} is on {listed(others)}, none of more than one dimension, "
        f"and on none of {len(matrices)} matrices",
        where=in_subject(place, begun.sp.module),
        evidence={"decayed": len(others), "matrices": len(matrices), "weight_decay": max(decays.values())},
        repro=command_for(subject, "GRD217"),
    )


def _decays(begun: BegunLoop, subject: Subject) -> dict[str, float]:
    """The weight decay of each parameter that an optimizer holds which steps."""
    names = {id(parameter): name for name, parameter in begun.sp.module.named_parameters()}
    found: dict[str, float] = {}

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            known = [names[id(each)] for each in group["params"] if id(each) in names]
            found.update(dict.fromkeys(known, float(group.get("weight_decay") or 0.0)))

    hook = register_optimizer_step_pre_hook(look)
    try:
        begun.step(begun.batches(lengths_for(subject)[0], subject.seed), subject.seed)
    finally:
        hook.remove()
    return found


def planted(subject: Subject) -> Subject:
    def begin(module: nn.Module) -> TrainingLoop:
        vectors = [each for each in module.parameters() if each.ndim < 2]
        matrices = [each for each in module.parameters() if each.ndim > 1]
        groups = [{"params": vectors, "weight_decay": 0.1}, {"params": matrices, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)

        return TrainingLoop(step=descent(subject, module, optimizer))

    return replace(subject, loop=begin)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("loop",), blocked_by=("NAN101",))
