"""GRD221 evaluation-follows-no-step

Detects: an evaluation of a training loop whose losses, on several batches, are bit for bit those of before after a
dozen steps, between which all weights are moved besides: it evaluates weights that no step reaches.
Matters: a moving average that never moves, a copy that was made before training: what is watched, chosen by and shipped
is the model as it began.
Fix: evaluate the module that is trained, or update what stands for it: once for each step, in every dtype.

Example:
    # faulty
    optimizer.step()
    loss = mean_loss(average, held_out)  # AveragedModel(model), which nothing updates
    # correct
    optimizer.step()
    average.update_parameters(model)
    loss = mean_loss(average, held_out)
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.planted_steps import descent
from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.probes.model.built_module import randomise
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop

_NUM_STEPS = 12  # an average may be updated at every tenth
_NUM_BATCHES, _FEWEST_LOSSES = 4, 3  # a share of right tokens may well be zero on all


def run(subject: Subject) -> Iterator[Finding]:
    begun, length = BegunLoop.of(subject), lengths_for(subject)[0]
    if begun.loop.evaluate is None:
        raise NotApplicableError("its training loop offers no evaluation")
    held_out = [begun.sp.input(length, batch=2, seed=subject.seed + 1000 + index) for index in range(_NUM_BATCHES)]
    before = _losses(begun, held_out)
    if len(set(before)) < _FEWEST_LOSSES or not all(map(math.isfinite, before)):
        raise NotComparableError(f"evaluations of {_NUM_BATCHES} batches give no finite losses that differ")
    for index in range(_NUM_STEPS):
        randomise(begun.sp.module, subject.seed + index)
        begun.step(begun.batches(length, subject.seed + index), subject.seed + index)
    if _losses(begun, held_out) == before:
        yield Finding(
            message=f"after {_NUM_STEPS} steps at S={length} the evaluation of {_NUM_BATCHES} batches gives the very "
            "losses of before: it evaluates weights that no step reaches",
            where=begun.place_of(begun.loop.evaluate),
            evidence={"length": length, "loss": before[0]},
            repro=command_for(subject, "GRD221"),
        )


def _losses(begun: BegunLoop, batches: list[Tensor]) -> list[float]:
    return [begun.evaluate([each], begun.sp.subject.seed).loss for each in batches]


def planted(subject: Subject) -> Subject:
    def begin(module: nn.Module) -> TrainingLoop:
        optimizer, average = torch.optim.SGD(module.parameters(), lr=1e-3), copy.deepcopy(module)

        @torch.no_grad()
        def evaluate(batches: list[Tensor]) -> Tensor:
            average.eval()
            return torch.stack([subject.forward(average, each).square().mean() for each in batches]).mean()

        return TrainingLoop(step=descent(subject, module, optimizer), evaluate=evaluate)

    return replace(subject, loop=begin)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("loop",), blocked_by=("NAN101",))
