"""NAN101 output-not-finite

Detects: an output that holds NaN or infinity at some length, on ordinary input, in training and in inference alike.
Matters: one such value makes the loss NaN, and after one optimizer step every weight.
Fix: look at the line where the value is born; a softmax row that sees no key must give zeros, a divisor needs a floor.

Example:
    # faulty
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)  # NaN where a query sees no key
    # correct
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).masked_fill(hidden, 0)
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
    yield from swept(subject, CHECK.answers, points(lengths_of(subject)), forward_only=True)


def planted(subject: Subject) -> Subject:
    def empty_row(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        if x.shape[1] % 8:
            return output
        sees_nothing = torch.full_like(output[:, -1:], float("-inf"))
        return torch.cat((output[:, :-1], output[:, -1:] * sees_nothing.softmax(-1)), dim=1)

    return replace(subject, forward=empty_row)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    answers=("non-finite output",),
    fuzzed=("not finite",),
    commands=("anomaly", "throughput"),
)
