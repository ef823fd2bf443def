"""FWD101 raises-on-valid-input

Detects: an exception from the subject's own code, forward or backward, at a length it must serve. Beside the line that
raises stand who called it and, of a function of torch's in forward, the lines that made what it was given.
Matters: the length comes up in training: the last batch, a shorter document, a longer context.
Fix: look at the line named; block sizes that must divide the length are the usual cause.

Example:
    # faulty
    x = x.unflatten(1, (-1, block))  # raises at a length that is no multiple of the block
    # correct
    x = F.pad(x, (0, 0, 0, -x.shape[1] % block)).unflatten(1, (-1, block))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from swept(subject, CHECK.answers, points(lengths_of(subject), modes=("train", "no_grad")))


def planted(subject: Subject) -> Subject:
    def whole_blocks_only(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x.unflatten(1, (-1, 4)).flatten(1, 2))

    return replace(subject, forward=whole_blocks_only)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    explained_by=("GRD401",),
    priority=240,
    answers=("raised",),
    fuzzed=("raises",),
    commands=("anomaly", "throughput"),
)
