"""NAN102 gradient-not-finite

Detects: a gradient that holds NaN or infinity although the output it comes from is finite.
Matters: the loss looks healthy on the very step that destroys the weights.
Fix: `torch.where` does not stop NaN in backward; make the input of sqrt, log, norm or division safe before the call.

Example:
    # faulty
    norm = x.square().sum(-1).sqrt()  # its slope at 0 is infinite
    # correct
    norm = (x.square().sum(-1) + 1e-6).sqrt()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from swept(subject, CHECK.answers, points(lengths_of(subject), modes=("train",)))


def planted(subject: Subject) -> Subject:
    def masked_root(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        nothing = output * 0
        return output + torch.where(nothing > 0, nothing.sqrt(), nothing)

    return replace(subject, forward=masked_root)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    answers=("non-finite gradient",),
    fuzzed=("gradient not finite",),
    commands=("anomaly",),
)
