"""A parameter whose share is one minus a number that is kept within bounds has an effect, unless that begins beyond."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Blends(nn.Module):
    """A share of what is mapped, and a drift for the rest."""

    def __init__(self, share: float, drift: float = 0.0) -> None:
        super().__init__()
        self.map = nn.Linear(DIM, DIM)
        self.share, self.drift = nn.Parameter(torch.tensor([share])), nn.Parameter(torch.tensor([drift]))

    def forward(self, x: Tensor) -> Tensor:
        share = self.share.clamp(0.0, 1.0)
        return share * self.map(x) + (1 - share) * self.drift


def examined(share: float, drift: float, seed: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Blends(share, drift)

    subject = Subject(
        name="x", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM, seed=seed
    )
    return run_check(registry.load("GRD208"), subject)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.999, 0.9999, 0.5])
def test_a_share_that_begins_within_its_bounds_leaves_the_rest_its_effect(share: float, seed: int) -> None:
    result = examined(share, 0.0, seed)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_a_share_that_begins_beyond_them_leaves_it_none(drift: float) -> None:
    (finding,) = examined(2.0, drift).findings
    assert "drift" in finding.message
