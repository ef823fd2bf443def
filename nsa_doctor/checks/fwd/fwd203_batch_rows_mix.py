"""FWD203 batch-rows-mix

Detects: a row of a batch whose output changes when the other rows do.
Matters: sequences read each other: training leaks between documents, and results depend on who shares the batch.
Fix: look at the line named: a reshape that should be a transpose, a sum, sort or softmax over the batch, one choice of
blocks for all rows.

Example:
    # faulty
    weights = scores.softmax(0)  # [B, H, S, S]: over the batch
    # correct
    weights = scores.softmax(-1)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import ANOTHER_SEED, departure_finding, one, said_of
from nsa_doctor.checks._shared.other_rows import NUM_ROWS, OF_ORDINARY_VALUES, Plan, mixed, mixed_by_norms, plans
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    yield from one(_examine(subject, plan) for plan in plans(subject))
    yield from mixed_by_norms(subject, "rows")


def _examine(subject: Subject, plan: Plan) -> Finding | None:
    seen = mixed(subject, plan)
    if seen is None:
        return None
    like, row, found = seen
    other_seed = replace(subject, seed=subject.seed + ANOTHER_SEED)
    if mixed(other_seed, replace(plan, held=((like, row),))) is None:
        return None
    sp = plan.module(subject)
    x, (beside, other) = sp.input(plan.length, NUM_ROWS), plan.changed(subject, sp, like, row)
    divergence = first_divergence(sp, lambda: sp(x), lambda: beside(other), {NUM_ROWS: 1 if row == 0 else -1})
    where = f" where all of it is {plan.values}" if like == OF_ORDINARY_VALUES else said_of(plan.values)
    message = f"{like} of the batch change a row's output{where} at B={NUM_ROWS}, S={plan.length} ({plan.mode})"
    return departure_finding(subject, "FWD203", message, divergence, found, length=plan.length, mode=plan.mode)


def planted(subject: Subject) -> Subject:
    def centred_over_the_batch(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output - 0.5 * output.mean(0, keepdim=True)

    return replace(subject, forward=centred_over_the_batch)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",), priority=430, telling=True
)
