"""TRN204 loss-too-low

Detects: a loss below what the data allows: below the entropy of a source that is known, or, on text that no run reads
    twice, below what any predictor reaches after so many tokens. Report 003 read such a loss, 0.28 in 200 steps, as
    success.
Matters: the model sees what it is to predict: targets equal inputs, or attention reaches the future.
Fix: look whether targets are shifted by one and masks are causal: nsa-doctor run --select FWD201,FWD202,GRD207.

Example:
    # faulty
    y = F.scaled_dot_product_attention(q, k, v)  # each token sees the one that it has to predict
    # correct
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""

import math
from collections.abc import Iterator
from typing import Any

from nsa_doctor.artifacts.training_run.declared import Declared, declared
from nsa_doctor.artifacts.training_run.loss_floors import floor_of_text
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import levels, series, timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_FEWEST = 8
_STRETCHES = 8
_ERRORS = 6.0  # of a level: the lowest of eight is below its mean by so many in one of ten million runs
_MARGIN = 0.02  # batches differ in how hard they are, and steps in how many targets they have
_MARGIN_HELD_OUT = 0.05  # a few rows stand for all


def run(subject: RunSubject) -> Iterator[Finding]:
    record, settings = subject.record, declared(subject.record)
    losses = series(timeline(record), "loss")
    if not losses:
        raise NotComparableError("the run logs no finite loss")
    held_out = [each.loss for each in record.evaluations if math.isfinite(each.loss)]
    floor, why, is_of_text = _floor(record, settings)
    if floor is None:
        raise NotApplicableError(why)
    found, best = levels(losses, _STRETCHES), min(held_out, default=None)
    low, where = found.values[found.lowest], found.stretches[found.lowest].steps_text
    if is_of_text and best is not None and best >= floor:
        return  # learnt by heart, and not a leak
    if len(losses) >= _FEWEST and low < floor * (1 - _MARGIN) - _ERRORS * found.error:
        yield _finding(subject, f"the loss is {low:.4g} ({where}), below {why}", low, floor)
    elif best is not None and not is_of_text and best < (settings.oracle or floor) * (1 - _MARGIN_HELD_OUT):
        yield _finding(subject, f"the held-out loss is {best:.4g}, below {why}", best, floor)


def _finding(subject: RunSubject, message: str, loss: float, floor: float) -> Finding:
    return Finding(
        message=message, evidence={"run": subject.name, "loss": loss, "floor": floor}, repro=subject.reproduce
    )


def _floor(record: RunRecord, settings: Declared) -> tuple[float | None, str, bool]:
    """The lowest loss that can be, what it is, and whether learning by heart can go below it."""
    if settings.entropy is not None:
        return (
            settings.entropy,
            f"the entropy of what it learns ({settings.entropy:.4g}), which no model can reach",
            False,
        )
    losses = series(timeline(record), "loss")
    floor = floor_of_text(settings, losses)
    if floor is not None:
        return floor, f"the {floor:g} that any predictor of such text needs after so few tokens", True
    return (
        None,
        "the run logs no entropy of its data, and no text known not to repeat: how low its loss may fall is open",
        False,
    )


def planted(subject: RunSubject) -> RunSubject:
    def unshifted(tokens: Any, documents: Any) -> Any:
        return tokens[:, :-1]

    return trained(steps=60, eval_every=0, seams={"nsa.train.objective.next_tokens": unshifted})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", priority=826)
