"""GRD234 average-follows-at-once

Detects: a copy that is not trained and that a method of its module (`update_target`, `ema_update`, `_momentum_update`,
…) moves towards the part that is, by more than half of the way at every call: the decay stands where one less it
belongs. A copy that is taken over whole is meant, and a decay that warms up is looked at after a hundred calls.
Matters: what is to be steady (a teacher, a target of values, an average of weights) is the part itself, a step late;
targets chase what they are targets of, and what the average was there for is lost.
Fix: `slow.lerp_(fast, 1 - decay)`, or `slow.mul_(decay).add_(fast, alpha=1 - decay)`.

Example:
    # faulty
    slow.lerp_(fast, self.decay)  # with a decay of 0.99
    # correct
    slow.lerp_(fast, 1 - self.decay)
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.slow_copies import hasty_copies
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for each in hasty_copies(subject):
        yield Finding(
            message=(
                f"{each.method} moves {each.copy} {each.share:.3g} of the way to {each.original} at a call: the copy "
                f"follows at once, and keeps {1 - each.share:.2g} of what it was"
            ),
            where=each.place,
            evidence={"copy": each.copy, "original": each.original, "share": each.share},
            repro=command_for(subject, "GRD234"),
        )
        return


def planted(subject: Subject) -> Subject:
    class Averaged(nn.Module):
        """The subject, and a layer with an average of it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layer = subject.build(subject.seed), nn.Linear(1, 1)
            self.average = copy.deepcopy(self.layer).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + self.layer(output[..., :1].float()).to(output)

        @torch.no_grad()
        def update_average(self) -> None:
            for slow, fast in zip(self.average.parameters(), self.layer.parameters(), strict=True):
                slow.lerp_(fast, 0.99)

    return replace(subject, build=lambda _seed: Averaged(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
