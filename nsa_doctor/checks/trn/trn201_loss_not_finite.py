"""TRN201 loss-not-finite

Detects: a step whose loss or gradient is NaN or infinite, the first of them, and where the run says it was born.
Matters: the optimizer writes it into every weight, and nothing after that step is training.
Fix: go to the module that the run names; where it names none, train with on_nonfinite: trace from the last checkpoint.

Example:
    # faulty
    loss = -probabilities.gather(-1, targets[..., None]).log().mean()  # the logarithm of 0
    # correct
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.refusals import (
    REFUSED,
    birthplace,
    is_not_finite,
    last_finite,
    made_again,
    reason,
    what,
)
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.text import counted
from nsa_doctor.testing.training_runs import trained

# A scaler of float16 gradients leaves out the steps that overflow: a dozen until it has found its scale, then one in
# thousands. One step in twenty is more than any that works.
_MOST_OVERFLOWS = 0.05
_FAULTY_FROM = 30


def run(subject: RunSubject) -> Iterator[Finding | Note]:
    beats = [beat for beat in subject.record.beats if beat.loss is not None or beat.grad_norm is not None]
    if all(beat.loss is None for beat in beats):
        raise NotComparableError("the run logs no loss")
    bad = [beat for beat in beats if is_not_finite(beat)]
    cured = made_again(beats)
    for beat in (beat for beat in bad if (beat.rank, beat.step) in cured):
        yield Note(
            message=f"{what(beat)} at step {beat.step}, which a later session of the run repeated with a finite value"
        )
        break
    bad = [beat for beat in bad if (beat.rank, beat.step) not in cured]
    if not bad:
        return
    steps, made = len({beat.step for beat in bad}), len({beat.step for beat in beats})
    if _is_of_a_scaler(subject.record, beats, bad):
        yield Note(
            message=f"the gradient overflows in {counted(steps, 'step')} of {made}, and the losses after are finite"
        )
        return
    first, before = bad[0], last_finite(beats, bad[0])
    why = reason(subject.record, first.step)
    others = f", as {steps - 1} more of {counted(made, 'step')}" if steps > 1 else ""
    left_out = " and was left out" if declared(subject.record).is_skipping else ""
    yield Finding(
        message=f"{what(first)} at step {first.step}{left_out}{others}{f': {why}' if why else ''}",
        where=birthplace(why),
        evidence={"run": subject.name, "step": first.step, "rank": first.rank, "steps": steps},
        control="" if before is None else f"finite up to step {before}",
        repro=subject.reproduce,
    )


def _is_of_a_scaler(record: RunRecord, beats: Sequence[Beat], bad: Sequence[Beat]) -> bool:
    precision = declared(record).precision
    if (precision and "16" not in precision) or "bf" in precision or any(beat.msg.startswith(REFUSED) for beat in bad):
        return False
    are_losses_finite = all(beat.loss is not None and math.isfinite(beat.loss) for beat in bad)
    return are_losses_finite and not is_not_finite(beats[-1]) and len(bad) <= max(1, _MOST_OVERFLOWS * len(beats))


def planted(subject: RunSubject) -> RunSubject:
    from torch.nn.functional import cross_entropy

    calls = count(1)

    def overflows(logits: Any, targets: Any, **options: Any) -> Any:
        loss = cross_entropy(logits, targets, **options)
        return loss / 0.0 if next(calls) > _FAULTY_FROM else loss

    return trained(seams={"nsa.train.objective.cross_entropy": overflows})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=820)
