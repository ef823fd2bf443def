"""A softmax that is held and left out is found where values are summed without one; others are silent."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Attention(nn.Module):
    """Holds a softmax, and weighs values by it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Softmax(dim=-1)

    def weights(self, scores: Tensor) -> Tensor:
        return self.attend(scores)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.weights(q @ k.mT / WIDTH**0.5) @ v  # here


class LeavesOut(Attention):
    def weights(self, scores: Tensor) -> Tensor:
        return 1.0 * scores


class ByFunction(Attention):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class Linear(Attention):
    """Sums by products on purpose, and divides by their sum."""

    def weights(self, scores: Tensor) -> Tensor:
        scores = scores.exp()
        return scores / scores.sum(-1, keepdim=True)


class Spare(nn.Module):
    """Holds a softmax for another use, and sums nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.probabilities = nn.Linear(WIDTH, WIDTH), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD233"), small_subject(make, width=WIDTH))


def test_a_softmax_that_is_left_out_is_found() -> None:
    (finding,) = examined(lambda: nn.Sequential(LeavesOut(), LeavesOut())).findings
    assert "0 holds a softmax as attend, calls none" in finding.message
    assert finding.message.endswith("so does 1 more")
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [Attention, ByFunction, Linear, Spare])
def test_other_ways_to_weigh_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
