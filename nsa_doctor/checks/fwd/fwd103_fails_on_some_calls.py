"""FWD103 fails-on-some-calls

Detects: a call or a training pass that raises, or gives NaN or infinity, at some draw of random numbers, some batch, or
after some number of calls.
Matters: one such call in ten thousand ends a run, and no run of a few steps shows it.
Fix: look at the line named: a divisor or a logarithm of what a draw can make zero, a size that fits one batch alone, a
buffer that is full after so many calls.

Example:
    # faulty
    kept = torch.rand(heads) > p
    y = y * kept / kept.sum()  # no head is kept now and then
    # correct
    y = y * kept / (1 - p)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.call_schedule import drawn_steps
from nsa_doctor.probes.numerics.earlier_calls import fails, first_seen
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    replays = Replays(subject, subject.dtype, "train")
    seen = first_seen(replays.fresh(), drawn_steps(subject), fails)
    if seen is not None:
        yield replays.finding("FWD103", seen, replays.cause(seen, fails))


def planted(subject: Subject) -> Subject:
    def infinite_at_every_fifth_call(module: nn.Module, x: Tensor) -> Tensor:
        number = getattr(module, "number_of_calls", 0) + 1
        object.__setattr__(module, "number_of_calls", number)
        output: Tensor = subject.forward(module, x)
        return output / (number % 5) if number >= 5 else output

    return replace(subject, forward=infinite_at_every_fifth_call)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD102",),
    explained_by=("FWD101", "FWD102", "NAN101", "NAN102", "NAN103", "GRD4"),
    priority=345,
)
