"""GRD401 saved-tensor-overwritten

Detects: code that writes in place into a tensor autograd has saved for backward; both lines are named.
Matters: backward raises, far from the line at fault, on the first training step that takes this way.
Fix: build a new tensor (`out = out + branch`) in place of `out += branch`, or write before the tensor is used.

Example:
    # faulty
    weights = torch.sigmoid(logits)
    weights *= 2  # backward of sigmoid needs what it returned
    # correct
    weights = 2 * torch.sigmoid(logits)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.overwritten import MOST_FINDINGS, first_passes, located
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.model.training import NoWatch, Trial
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for trial, watch, _ in first_passes(subject):
        refused = [saved for saved in watch.saved if saved.is_refused]
        if not refused or not _raises(trial):
            continue
        for overwrite in located(subject, trial, refused)[:MOST_FINDINGS]:
            yield overwrite.finding(subject, "GRD401", trial, "backward raises")
        return


def _raises(trial: Trial) -> bool:
    """Whether backward refuses, without anybody watching."""
    answer = attempt(lambda: trial.run(NoWatch()))
    if not isinstance(answer, Caught):
        return False
    error = answer.error.caught.error if isinstance(answer.error, SubjectFailedError) else answer.error
    return error_kind(str(error)) is TorchError.SAVED_TENSOR_MODIFIED


def planted(subject: Subject) -> Subject:
    def doubled_in_place(module: nn.Module, x: Tensor) -> Tensor:
        weights = torch.sigmoid(subject.forward(module, x))
        return weights.mul_(2)

    return replace(subject, forward=doubled_in_place)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    priority=210,
    explains=("saved tensor modified",),
    commands=("anomaly",),
)
