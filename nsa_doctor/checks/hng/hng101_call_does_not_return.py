"""HNG101 call-does-not-return

Detects: a forward or backward pass that does not come back: it runs for ever, or ends its process.
Matters: a job that hangs burns its whole allocation, and a watchdog only says that it did.
Fix: look at the line the stack ends in and at the length named; a loop whose step can be zero is the usual cause.

Example:
    # faulty
    while start < end:
        start += (end - start) // 2  # 0 when one token is left
    # correct
    while start < end:
        start += max(1, (end - start) // 2)
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
    # Coming back is passing: the child process this runs in has a time limit, and its end is the finding.
    yield from swept(subject, CHECK.answers, points(lengths_of(subject), modes=("train", "no_grad")))


def planted(subject: Subject) -> Subject:
    def never_advances(module: nn.Module, x: Tensor) -> Tensor:
        start, end, step = x.shape[1], 0, 0
        while start > end:
            start -= step
        return subject.forward(module, x)

    return replace(subject, forward=never_advances)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    isolate=True,
    priority=200,
    answers=("timeout", "died"),
    fuzzed=("hangs", "dies"),
    commands=("anomaly",),
)
