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

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, odd_lengths, one
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_BATCHES = (2, 5)
_MORE_BATCHES = (3, 4, 8)
_SHORT = 19


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    plans = [(length, batch) for batch in _BATCHES] + [(min(_SHORT, length), batch) for batch in _MORE_BATCHES]
    yield from one(_examine(subject, *plan) for plan in plans)


def _examine(subject: Subject, length: int, batch: int) -> Finding | None:
    found = confirmed(subject, lambda subject: _changed(subject, length, batch))
    if found is None:
        return None
    built = comparable_module(subject)
    x, row = built.input(length, batch), found.first_row
    alone, kept = x[row : row + 1].clone(), 1 if row == 0 else -1
    divergence = first_divergence(built, lambda: built(x), lambda: built(alone), {batch: kept})
    message = f"row {row} of {batch} gets another output than alone at S={length}"
    return departure_finding(subject, "FWD204", message, divergence, found, length=length, batch=batch)


def _changed(subject: Subject, length: int, batch: int) -> Departure | None:
    built = comparable_module(subject)
    base = baseline(built, built.input(length, batch))
    for row in (0, batch - 1):
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
