"""GRD220 optimizer-setting-without-effect

Detects: a momentum, a beta or a weight decay that the optimizer of a training loop is given and does not follow: steps
    with another value end in the same parameters, bit by bit, where another learning rate does not.
Matters: momentum that starts from zero at each step, moments that no step reads, a decay that is left out: the run is
    one of another optimizer, and every comparison of that setting compares nothing.
Fix: read the setting in the step, and keep what is averaged in the optimizer's state.

Example:
    # faulty
    buffer = torch.zeros_like(parameter)
    buffer.mul_(momentum).add_(gradient)
    # correct
    buffer = state.setdefault("buffer", torch.zeros_like(parameter))
    buffer.mul_(momentum).add_(gradient)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.checks._shared.planted_steps import descent
from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.model.optimizer_settings import NUM_STEPS, settings_not_followed
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop


def run(subject: Subject) -> Iterator[Finding]:
    idle = settings_not_followed(subject, lengths_for(subject)[0])
    for kind in dict.fromkeys(each.kind for each in idle):
        own = [each for each in idle if each.kind is kind]
        others = joined([f"{each.other:g}" for each in own])
        yield Finding(
            message=f"{kind.__name__} does not follow {joined([str(each) for each in own])}: {NUM_STEPS} steps with "
            f"{others} end in the same parameters",
            where=own[0].place,
            evidence={"settings": ",".join(each.name for each in own), "optimizer": kind.__name__},
            control="another learning rate ends in others",
            repro=command_for(subject, "GRD220"),
        )


def planted(subject: Subject) -> Subject:
    class Forgetful(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 1e-3, "momentum": 0.9})

        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for each in group["params"]:
                    if each.grad is not None:
                        buffer = torch.zeros_like(each).mul_(group["momentum"]).add_(each.grad)
                        each.sub_(group["lr"] * buffer)

    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = Forgetful(module.parameters())

        return TrainingLoop(step=descent(subject, module, optimizer))

    return replace(subject, loop=begin)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("loop",), blocked_by=("NAN101",))
