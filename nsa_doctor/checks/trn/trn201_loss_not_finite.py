"""TRN201 loss-not-finite

Detects: a step whose loss is NaN or infinite.
Matters: the optimizer writes it into every weight, and nothing after that step is training.
Fix: go to the module that the run names; where it names none, train with on_nonfinite: trace from the last checkpoint.
"""

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from nsa_doctor.check import Check
from nsa_doctor.checks.trained import trained
from nsa_doctor.finding import Finding
from nsa_doctor.runner import NotComparableError
from nsa_doctor.runs.subject import RunSubject

_SICK_FROM = 30


def run(subject: RunSubject) -> Iterator[Finding]:
    losses = [beat for beat in subject.record.beats if beat.loss is not None]
    if not losses:
        raise NotComparableError("the run tells no loss")
    bad = [beat for beat in losses if not math.isfinite(beat.loss or 0.0)]
    if bad:
        yield Finding(
            message=f"the loss is {bad[0].loss} at step {bad[0].step}",
            evidence={"run": subject.name, "step": bad[0].step, "rank": bad[0].rank, "steps": len(bad)},
            repro=subject.again,
        )


def planted(subject: RunSubject) -> RunSubject:
    calls = count(1)

    def overflows(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
        loss = cross_entropy(logits, targets, **options)
        return loss / 0.0 if next(calls) > _SICK_FROM else loss

    return trained(seams={"nsa.train.objective.cross_entropy": overflows})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke")
