"""Scores that are the sum of two products, as of keys with and without positions: scaled by the channels of both."""

import math
from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

PLAIN, TURNED = 16, 8
WIDTH = PLAIN + TURNED


class Latent(nn.Module):
    """Adds the products of two parts of queries and keys, and multiplies them by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.qk, self.value = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.factor = factor  # here

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        scores = q[..., :PLAIN] @ k[..., :PLAIN].mT
        scores = scores + q[..., PLAIN:] @ k[..., PLAIN:].mT
        return (scores * self.factor).softmax(-1) @ self.value(x)


def examined(factor: float) -> Result:
    make: Callable[[], nn.Module] = lambda: Latent(factor)  # noqa: E731
    return run_check(registry.load("FWD230"), small_subject(make, width=WIDTH))


def test_the_root_of_all_channels_is_found() -> None:
    (finding,) = examined(math.sqrt(WIDTH)).findings
    assert finding.message.startswith(
        "scores that are the sum of products of 24 channels in all are multiplied by 4.899"
    )


@pytest.mark.parametrize("factor", [WIDTH**-0.5, PLAIN**-0.5, 1.0])
def test_other_factors_are_no_finding(factor: float) -> None:
    assert examined(factor).findings == ()
