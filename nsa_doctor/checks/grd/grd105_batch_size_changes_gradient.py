"""GRD105 batch-size-changes-gradient

Detects: gradients of a batch that are not the sum of the gradients of its rows alone, though the outputs are those of
the rows.
Matters: a run with another batch size, or with accumulated gradients, is another training.
Fix: look at the line named for a backward that divides by its number of rows, a broadcast over the batch whose gradient
is kept for one row alone, or a branch on the size of the batch.

Example:
    # faulty
    return grad_output / grad_output.shape[0]  # of a sum, the mean
    # correct
    return grad_output
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import many_tokens
from nsa_doctor.checks._shared.each_length import each_length
from nsa_doctor.core.check import Check
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.by_row import RowDeparture, first_departure
from nsa_doctor.probes.gradients.derivative import has_steps
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.gradient_fault import find_fault
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_BATCHES = (2, 3, 4, 5, 8)
_BATCHES_IN_TRAINING = (2, 3)
_FEW = (3,)  # of two, what exchanges them twice is not seen
_CALLS = 6  # a forward and a backward pass, of all rows and of each, in calls without gradients


def run(subject: Subject) -> Iterator[Finding]:
    if "eval" not in subject.modes:
        raise NotApplicableError("it has no gradients in eval()")
    for sp, length, batches in _tried(subject):
        if (found := first_departure(sp, length, batches)) is not None:
            yield _finding(sp, length, found)
            return


def _tried(subject: Subject) -> Iterator[tuple[BuiltModule, int, Sequence[int]]]:
    """Lengths and batches: growing ones of a short length, in training too, and one of many tokens in all.

    Of what no causal order lets GRD109 compare over lengths, a few rows of each length besides.
    """
    sp, length = comparable_module(subject), min(_LENGTH, subject.max_length)
    yield sp, length, _BATCHES
    yield from ((sp, long, (rows,)) for long, rows in many_tokens(subject, _CALLS))
    if "train" in subject.modes:
        training = comparable_module(subject, mode="train")
        if _keeps_rows_apart(training, length):
            yield training, length, _BATCHES_IN_TRAINING
    if Declaration.BIDIRECTIONAL in subject.spec:
        of_few = lambda length: first_departure(sp, length, _FEW)  # noqa: E731
        yield from ((sp, length, _FEW) for length in each_length(subject, of_few))


def _keeps_rows_apart(training: BuiltModule, length: int) -> bool:
    """Whether nothing is drawn, and the output of a row is that which it has alone: no statistics of a batch."""
    seed_everything(training.subject.seed)
    generators = Generators()
    base = baseline(training, training.input(length, max(_BATCHES_IN_TRAINING)))
    with torch.no_grad():
        is_apart = base.departure(training(base.x[-1:]), rows=slice(-1, None)) is None
    return is_apart and not generators.drawn_from()


def _finding(sp: BuiltModule, length: int, found: RowDeparture) -> Finding:
    place, what, mode = definition_place(sp.module), "", " (train)" if sp.module.training else ""
    if has_steps(getattr(torch, sp.dtype)):
        fault = find_fault(DerivativeProbe(sp, sp.input(length, found.batch)))
        place, what = (place, "") if fault is None else (fault.place, f"; first in {fault.what}")
    return Finding(
        message=f"the gradient of {found.name} at B={found.batch}, S={length}{mode} differs from the sum over the rows "
        f"alone by {found.error:.2g} (tolerance {found.bound:.1g}){what}",
        where=place,
        evidence={"length": length, "batch": found.batch, "error": found.error, "floor": found.bound},
        repro=command_for(sp.subject, "GRD105"),
    )


class _MeanOverRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / gradients[0].shape[0]


def planted(subject: Subject) -> Subject:
    def averages_its_gradient(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = _MeanOverRows.apply(subject.forward(module, x))
        return output

    return replace(subject, forward=averages_its_gradient)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD203", "FWD204", "FWD206", "NAN101", "NAN102"),
    explained_by=("FWD203", "FWD204", "GRD101", "GRD104", "GRD4"),
    priority=516,
)
