"""FWD103 fails-on-some-calls

Detects: a call or a training pass that raises, or gives NaN or infinity, at some draw of random numbers, some batch, or
after some number of calls. So does a norm by the batch that is left with one row of several, as in the last part of a
batch that is cut into parts, where smaller batches go well; of a batch of one row it is torch's own rule.
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
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.model.call_history import Call
from nsa_doctor.probes.model.call_schedule import drawn_steps
from nsa_doctor.probes.numerics.earlier_calls import fails, first_seen
from nsa_doctor.probes.numerics.rows_left_over import row_left_over
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    replays = Replays(subject, subject.dtype, "train")
    seen = first_seen(replays.fresh(), drawn_steps(subject), fails)
    if seen is not None:
        yield replays.finding("FWD103", seen, replays.cause(seen, fails))
        return
    left = row_left_over(subject)
    if left is not None:
        call = Call(mode="train", length=left.length, batch=left.batch)
        yield Finding(
            message=f"raises {left.raised} in forward: {call}; a norm by the batch is left with one row, and "
            f"{left.well} rows go well",
            where=left.place,
            evidence={
                "symptom": "raises",
                "kind": "raised",
                "length": left.length,
                "batch": left.batch,
                "mode": "train",
                **error_evidence(left.raised),
            },
            control=f"a batch of {left.well} goes well",
            repro=command_for(subject, "FWD103"),
        )


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
