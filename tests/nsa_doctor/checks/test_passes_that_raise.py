"""A length at which the subject raises, or at which torch refuses a norm, leaves the others to be looked at."""

from typing import Any

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Pooled(nn.Module):
    """Normalises what every fourth token is: a short sequence has one, of which there is no variance."""

    def __init__(self, is_overwritten: bool) -> None:
        super().__init__()
        self.norm, self.out, self.is_overwritten = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), is_overwritten

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.norm(x[:, ::4].mT).mT
        waved = self.out(pooled.mean(1, keepdim=True) + x).exp()
        return waved.mul_(2) if self.is_overwritten else waved * 2  # the first writes into what exp needs


def examined(code: str, **options: Any) -> Result:
    subject = small_subject(lambda: Pooled(**options), width=WIDTH, max_length=80)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize("code", ["GRD401", "GRD402"])
def test_a_length_that_raises_is_passed_over(code: str) -> None:
    result = examined(code, is_overwritten=False)
    assert result.verdict is Verdict.PASS, result.reason


def test_what_is_overwritten_at_other_lengths_is_found() -> None:
    findings = examined("GRD401", is_overwritten=True).findings
    assert [each.evidence["length"] for each in findings if each.code == "GRD401"] == [67]
