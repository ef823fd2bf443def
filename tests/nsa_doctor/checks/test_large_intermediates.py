"""What values larger than an output lose in rounding is allowed to it; a leak that is as small as the output is not."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class MeanOfExponentials(nn.Linear):
    """The logarithm of a mean of exponentials over earlier tokens, below the peak of all: nearly that of the values."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        peak = y.amax(1, keepdim=True)
        seen = (y - peak).exp().cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        y = seen.log() + peak
        if self.share:
            y = y + self.share * y.mean(1, keepdim=True)  # leaks
        return y


def examined(share: float, seed: int) -> Result:
    subject = small_subject(lambda: MeanOfExponentials(share), width=WIDTH, max_length=300, seed=seed)
    return run_check(registry.load("FWD201"), subject)


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_what_is_larger_than_the_output_is_no_finding(seed: int) -> None:
    result = examined(0.0, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("share", [1.0, 1e-3, 1e-6])
def test_a_leak_beside_it_is_found(share: float) -> None:
    (finding,) = examined(share, 0).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# leaks\n"), finding
