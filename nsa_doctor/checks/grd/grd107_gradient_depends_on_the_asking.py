"""GRD107 gradient-depends-on-the-asking

Detects: gradients of one output that change with what must not matter: the strides of the cotangent, create_graph, a
frozen parameter elsewhere, training mode where the output is the same; or that a larger cotangent makes not finite.
Matters: `loss.sum()`, a fused loss and a scaled one hand over other strides and sizes than the one that was tested.
Fix: a hand-written backward reads `grad` by its strides, or branches on a mode; call `.contiguous()` on it first.

Example:
    # faulty
    kernel[grid](grad.data_ptr(), grad.numel())
    # correct
    grad = grad.contiguous()
    kernel[grid](grad.data_ptr(), grad.numel())
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.checks._shared.asked import first_departing
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.gradients.askings import askings
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from first_departing(subject, "GRD107", askings)


class _ReadsMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return given[0] if given[0].is_contiguous() else given[0] / 2


def planted(subject: Subject) -> Subject:
    return replace(subject, forward=lambda module, x: _ReadsMemory.apply(subject.forward(module, x)))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101"), explained_by=("GRD101",)
)
