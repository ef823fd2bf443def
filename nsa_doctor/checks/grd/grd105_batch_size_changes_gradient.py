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

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.gradients_of_rows import tried
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.by_row import RowDeparture, first_departure
from nsa_doctor.probes.gradients.derivative import has_steps
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.gradient_fault import find_fault
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    if "eval" not in subject.modes:
        raise NotApplicableError("it has no gradients in eval()")
    for sp, length, batches in tried(subject):
        if (found := first_departure(sp, length, batches)) is not None:
            yield _finding(sp, length, found)
            return


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
    unless=("stochastic",),
)
