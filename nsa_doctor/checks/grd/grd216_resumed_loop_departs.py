"""GRD216 resumed-loop-departs

Detects: a training loop restored from its own snapshot, in a new process or in place of another, that goes on otherwise
    than the one that was never stopped: weights, optimizer, rate or steps are not put back. And what evaluation keeps,
    as the best weights so far, that follows the weights as they are trained on.
Matters: each restart is a jump in the run; the weights that are kept as the best are those of the last step.
Fix: save and load the state of the module, of the optimizer and of the schedule; clone what is to be kept:
`state_dict()` shares its memory with the parameters.

Example:
    # faulty
    self.best = dict(self.model.state_dict())
    # correct
    self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.checks._shared.planted_steps import descent
from nsa_doctor.checks._shared.resumed import departures, remembered
from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop


def run(subject: Subject) -> Iterator[Finding]:
    loop = BegunLoop.of(subject).loop
    if loop.snapshot is None or (loop.restore is None and loop.evaluate is None):
        raise NotApplicableError("its training loop makes no snapshot, or neither goes on from one nor evaluates")
    length = lengths_for(subject)[0]
    for looked in (departures, remembered):
        for message, place in looked(subject, length):
            yield Finding(
                message=message, where=place, evidence={"length": length}, repro=command_for(subject, "GRD216")
            )


def planted(subject: Subject) -> Subject:
    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

        def restore(snapshot: dict[str, Any]) -> None:
            module.load_state_dict(snapshot["model"])  # and no momentum

        return TrainingLoop(
            step=descent(subject, module, optimizer), snapshot=lambda: {"model": module.state_dict()}, restore=restore
        )

    return replace(subject, loop=begin)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("loop",),
    blocked_by=("NAN101",),
    explained_by=("GRD204", "GRD205", "GRD214"),
)
