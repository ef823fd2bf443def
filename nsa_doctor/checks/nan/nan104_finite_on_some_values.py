"""NAN104 finite-on-some-values

Detects: an output or gradient that is finite on ordinary input and not on zeros, constants, repeated tokens, one huge
token, or input that brings attention logits near -1e4 and +1e4.
Matters: such input comes: padding, a repeated token, an outlier channel after some thousand steps.
Fix: subtract the row's maximum before exp, give norms an epsilon, and let a softmax run in float32.

Example:
    # faulty
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)  # exp(89) is infinite in float32
    # correct
    weights = scores.softmax(-1)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import VALUES
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject

_NUM_LENGTHS = 3


def run(subject: Subject) -> Iterator[Finding]:
    lengths = lengths_of(subject)[-_NUM_LENGTHS:]
    yield from swept(subject, CHECK.answers, points(lengths, modes=("train",), values=VALUES))


def planted(subject: Subject) -> Subject:
    def bare_exponential(module: nn.Module, x: Tensor) -> Tensor:
        weight = x.abs().flatten(2).amax(-1).exp()[..., None]
        return subject.forward(module, x) * (weight / weight)

    return replace(subject, forward=bare_exponential)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, answers=("non-finite by values",), fuzzed=("not finite on some values",)
)
