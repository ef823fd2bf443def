"""A part that lays tokens out anew is the only way into a stage as it is meant to be; a bare sublayer is not."""

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix((x @ x.mT).softmax(-1) @ x)


class _Stage(nn.Module):
    """Channels are made anew, then attention with its residual."""

    def __init__(self, width: int, *, has_residual: bool) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(width, DIM), _Attention()
        self.out, self.has_residual = nn.Linear(DIM, 2 * DIM), has_residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(x) if self.has_residual else self.attention(x)
        return self.out(x)


def stages(*, has_residual: bool) -> nn.Module:
    first, second = (_Stage(width, has_residual=has_residual) for width in (2 * DIM, 2 * DIM))
    return nn.Sequential(nn.Linear(DIM, 2 * DIM), first, second, nn.Linear(2 * DIM, DIM))


@pytest.mark.parametrize("has_residual", [True, False])
def test_a_stage_that_changes_the_channels_is_asked_for_its_sublayers(has_residual: bool) -> None:
    result = run_check(registry.load("FWD232"), embedding_subject(lambda: stages(has_residual=has_residual)))
    assert [finding.evidence["part"] for finding in result.findings] == ["attention"] * (not has_residual)
