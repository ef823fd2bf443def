"""FWD204 batch-size-changes-a-row

Detects: a row that gets another output alone than in a batch, though it does not matter what the other rows hold.
Matters: evaluation with one batch size and training with another are different models.
Fix: a size taken from the batch (a mask, a stride, a scale), or a broadcast that fits by accident when B is 1.

Example:
    # faulty
    scores = q @ k.mT / q.shape[0] ** 0.5  # the number of rows, not the size of a head
    # correct
    scores = q @ k.mT / q.shape[-1] ** 0.5
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import branch_finding, confirmed, one, said_of
from nsa_doctor.checks._shared.row_alone import Plan, plans, row_that_changes
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.inputs import with_values
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from one(_examine(subject, plan) for plan in plans(subject))


def _examine(subject: Subject, plan: Plan) -> Finding | None:
    subject = with_values(subject, plan.values)
    found = confirmed(subject, lambda subject: row_that_changes(subject, plan))
    if found is None:
        return None
    built = comparable_module(subject)
    x, row = plan.input(built), found.first_row
    alone, kept = x[row : row + 1].clone(), -1 if row == plan.batch - 1 else row + 1
    ways = (lambda: built(alone)), (lambda: built(x))
    padded = " padded with zeros" if plan.is_padded else ""
    message = f"row {row} of {plan.batch}{padded} gets another output than alone{said_of(plan.values)}"
    at, evidence = f" at S={plan.length}", {"length": plan.length, "batch": plan.batch}
    return branch_finding(built, "FWD204", message + at, ways, found, {plan.batch: kept}, **evidence)


def planted(subject: Subject) -> Subject:
    def scaled_by_the_batch(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output / x.shape[0]

    return replace(subject, forward=scaled_by_the_batch)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD206",),
    explained_by=("FWD203", "FWD201", "FWD308"),
    priority=440,
    fuzzed=("row alone differs",),
    unless=("stochastic",),
)
