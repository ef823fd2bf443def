"""Training mode gives one output, whether its gradients are recorded or not."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject


class _Quantizes(nn.Module):
    """Whole numbers, with an estimate of their gradient where there is one, and draws in training."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.linear, self.sign = nn.Linear(8, 8), sign

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y = y + torch.rand_like(y) if self.training else y
        chosen = y.round()
        if self.training and y.requires_grad:
            chosen = y + (chosen + self.sign * y).detach()  # which is chosen, if the sign is right
        return chosen


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_output_that_is_another_where_training_records_gradients_is_found(sign: float) -> None:
    findings = run_check(registry.load("FWD207"), embedding_subject(lambda: _Quantizes(sign))).findings
    assert [finding.message.partition(" at S=")[0] for finding in findings] == [
        "training mode gives another output with gradients than under no_grad"
    ] * (sign > 0)
    assert all("self.sign" in linecache.getline(each.where.file, each.where.line) for each in findings)
