"""GRD108 circumstance-changes-gradient

Detects: gradients in eval() that change with what must not matter: the layout of the input in memory, anomaly or
deterministic mode, the thread, torch's number of threads or its default dtype, an input that requires a gradient.
Matters: the output is right wherever one looks, and a run with a transposed batch or in deterministic mode trains
another way.
Fix: look at the line named for a branch on strides or on a mode of torch's, in the forward or in its backward.

Example:
    # faulty
    if not x.is_contiguous():
        x = x.detach().contiguous()
    # correct
    x = x.contiguous()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.asked import first_departing
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.gradients.askings import circumstances
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from first_departing(subject, "GRD108", circumstances, is_confirmed=True)


def planted(subject: Subject) -> Subject:
    def doubles_in_deterministic_mode(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        if torch.are_deterministic_algorithms_enabled():
            output = output * 2 - output.detach()
        return output

    return replace(subject, forward=doubles_in_deterministic_mode)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("FWD205", "FWD212", "GRD101", "GRD104"),
)
