"""A softmax that is held and left out is found where values are summed without one; others are silent."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

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


class LeavesOutOverChannels(LeavesOut):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.Softmax2d()


class ByFunction(Attention):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class Linear(Attention):
    """Sums by products on purpose, and divides by their sum."""

    def weights(self, scores: Tensor) -> Tensor:
        scores = scores.exp()
        return scores / scores.sum(-1, keepdim=True)


class Fused(Attention):
    """Has torch weigh, beside a product of its own."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return scaled_dot_product_attention(q, k, v) + (q @ k.mT) @ v


class ByPart(Attention):
    """A part of another class weighs some."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ByFunction()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.inner(x) + (q @ k.mT) @ v


class OfState(Attention):
    """Sums keys and values over tokens before queries read them."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return q @ (k.mT @ v) / x.shape[1]


class WhereAsked(Attention):
    """Another call uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_linear = True

    def weights(self, scores: Tensor) -> Tensor:
        return scores if self.is_linear else self.attend(scores)


class Spare(nn.Module):
    """Holds a softmax for another use, and sums nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.probabilities = nn.Linear(WIDTH, WIDTH), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD233"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize("make", [LeavesOut, LeavesOutOverChannels])
def test_a_softmax_that_is_left_out_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(lambda: nn.Sequential(make(), make())).findings
    assert "0 holds a softmax as attend, calls none" in finding.message
    assert finding.message.endswith("so does 1 more")
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [Attention, ByFunction, ByPart, Fused, Linear, OfState, Spare, WhereAsked])
def test_other_ways_to_weigh_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
