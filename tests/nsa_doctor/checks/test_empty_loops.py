"""A loop that counts the wrong way is found where a run comes to it; others may run another time."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

WIDTH = 8


class Layer(nn.Linear):
    """A layer that may have something to add."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(WIDTH, WIDTH)
        self.size = size


class PairsNothing(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.skips = {}
        for number in range(self.size // 2, 0):  # here
            self.skips[self.size - number] = number


class StopsBeforeZero(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for token in range(x.shape[1] - 1, -1):  # here
            y = y + x[:, token : token + 1]
        return y


class GoesBackFromZero(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for token in range(0, x.shape[1], -1):  # here
            y = y + x[:, token : token + 1]
        return y


class GoesBack(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for _ in range(self.size, 0, -1):
            y = y.tanh()
        return y


class StartsBelowZero(Layer):
    def __init__(self) -> None:
        super().__init__(-3)
        self.shifts = []
        for shift in range(self.size, 0):
            self.shifts.append(shift)
        for shift in range(-self.size // 9, 0):
            self.shifts.append(shift)


class HasOneLayer(Layer):
    def __init__(self) -> None:
        super().__init__(1)
        self.more = 0
        for number in range(1, self.size):
            self.more += number


class IsNeverCalled(Layer):
    def skips(self) -> int:
        total = 0
        for number in range(self.size, 0):
            total += number
        return total


def findings(kind: Callable[[], nn.Module]) -> tuple[Finding, ...]:
    subject = Subject(
        name="tests",
        build=lambda seed: kind(),
        forward=lambda module, x: module(x),
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )
    return run_check(registry.load("FWD249"), subject).findings


@pytest.mark.parametrize(
    ("kind", "way"),
    [(PairsNothing, "upwards to 0"), (StopsBeforeZero, "upwards to 0"), (GoesBackFromZero, "downwards from 0")],
)
def test_a_loop_that_counts_the_wrong_way_is_found_at_its_line(kind: Callable[[], nn.Module], way: str) -> None:
    (finding,) = findings(kind)
    assert way in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("kind", [GoesBack, StartsBelowZero, HasOneLayer, IsNeverCalled])
def test_a_loop_that_runs_or_may_run_is_none(kind: Callable[[], nn.Module]) -> None:
    assert findings(kind) == ()
