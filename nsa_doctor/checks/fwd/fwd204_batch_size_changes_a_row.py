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
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, many_tokens, odd_lengths, one, said_of
from nsa_doctor.checks._shared.each_length import LONGEST, each_length
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.inputs import rows_to_try, with_values
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_BATCHES = (2, 5)
_MORE_BATCHES = {"smoke": (3, 4, 8), "quick": (3, 4, 6, 7, 8, 9, 17), "full": (3, 4, 6, 7, 8, 9, 12, 16, 17, 33)}
_SHORT, _PADDED = 19, 9
_FEW = 3  # of two, what exchanges them twice is not seen


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    short = min(_SHORT, length)
    plans = [Plan(length, batch) for batch in _BATCHES]
    plans += [Plan(short, batch) for batch in _MORE_BATCHES[subject.profile]]
    plans += [Plan(short, _PADDED, is_padded=True)] if subject.profile != "smoke" else []
    plans += [Plan(short, _BATCHES[0], values=kind) for kind in rows_to_try(subject)]
    plans += [Plan(*many) for many in many_tokens(subject)]
    yield from one(_examine(subject, plan) for plan in chain(plans, _of_each_length(subject)))


@dataclass(frozen=True)
class Plan:
    """A batch of rows, of values of a kind; padded ones begin and end with zeros, each with another number of them."""

    length: int
    batch: int
    is_padded: bool = False
    values: str = ""

    def input(self, built: BuiltModule) -> Tensor:
        x = built.input(self.length, self.batch)
        for row in range(self.batch if self.is_padded else 0):
            x[row, : (row + 2) % 3] = 0
            x[row, self.length - (2 * row + 2) % 5 :] = 0
        return x


def _of_each_length(subject: Subject) -> Iterator[Plan]:
    """The first length at which the last of a few rows gets another output than alone, if there is one."""
    built = comparable_module(subject)
    x = built.input(min(LONGEST, subject.max_length), _FEW)

    def differs(length: int) -> bool:
        base = baseline(built, x[:, :length])
        with torch.no_grad():
            return base.departure(built(base.x[-1:]), rows=slice(-1, None)) is not None

    yield from (Plan(length, _FEW) for length in islice(filter(differs, each_length(subject, differs)), 1))


def _examine(subject: Subject, plan: Plan) -> Finding | None:
    subject = with_values(subject, plan.values)
    found = confirmed(subject, lambda subject: _changed(subject, plan))
    if found is None:
        return None
    built = comparable_module(subject)
    x, row = plan.input(built), found.first_row
    alone, kept = x[row : row + 1].clone(), -1 if row == plan.batch - 1 else row + 1
    divergence = first_divergence(built, lambda: built(x), lambda: built(alone), {plan.batch: kept})
    padded = " padded with zeros" if plan.is_padded else ""
    message = f"row {row} of {plan.batch}{padded} gets another output than alone{said_of(plan.values)}"
    evidence = {"length": plan.length, "batch": plan.batch}
    return departure_finding(subject, "FWD204", f"{message} at S={plan.length}", divergence, found, **evidence)


def _changed(subject: Subject, plan: Plan) -> Departure | None:
    built = comparable_module(subject)
    try:
        base = baseline(built, plan.input(built))
    except NotComparableError:
        if plan.is_padded:  # what comes of rows of padding is for the NAN checks to tell
            return None
        raise
    for row in sorted({0, plan.batch // 2, plan.batch - 1}):
        with torch.no_grad():
            alone = built(base.x[row : row + 1])
        found = base.departure(alone, rows=slice(row, row + 1))
        if found is not None:
            return replace(found, first_row=row)
    return None


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
)
