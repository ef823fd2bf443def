"""A small function that no pass calls, within reach of the subject's code, is asked for what its name says (FWD267)."""

from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Pooled(nn.Module):
    """Its helper divides by all tokens; no pass without a mask calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    @staticmethod
    def masked_mean(values: Tensor, mask: Tensor) -> Tensor:  # here
        return (values * mask).sum(-1) / mask.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_helper_that_no_pass_calls_is_found_at_its_line() -> None:
    findings = run_check(registry.load("FWD267"), small_subject(Pooled, width=WIDTH)).findings
    (finding,) = findings
    assert is_marked(finding.where.file, finding.where.line)
    assert "masked_mean is not what its name says" in finding.message
