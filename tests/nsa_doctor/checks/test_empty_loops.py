"""A loop that counts the wrong way is found where a run comes to it; others may run another time."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

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


class CountsItsParts(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [1, 2, 3]
        for number in range(len(self.parts) - 1, -1):  # here
            self.size += number


class CountsInReverse(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for turn, token in enumerate(reversed(range(self.size, 0))):  # here
            y = y + x[:, token : token + 1] * turn
        return y


class HasNoneToTheLeft(Layer):
    def __init__(self) -> None:
        super().__init__(0)
        self.offsets, self.lowest = [], -self.size
        for offset in range(self.lowest, 0):
            self.offsets.append(offset)
        for offset in range(0, self.size, -1):
            self.offsets.append(offset)


class FillsUp(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for _ in range(x.shape[1] - self.size, 0):
            y = nn.functional.pad(y, (0, 0, 1, 0))
        return y


class BeginsWithAnAnnotation(Layer):
    def __init__(self) -> None:
        super().__init__(3)
        self.total, self.first = 0, 3 - 2 * self.size
        for offset in range(self.first, 0):
            number: int
            number = offset
            self.total += number


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
    subject = small_subject(kind, width=WIDTH)
    return run_check(registry.load("FWD249"), subject).findings


UPWARDS, DOWNWARDS = "upwards to 0", "downwards from 0"
WRONG = [
    (PairsNothing, UPWARDS),
    (StopsBeforeZero, UPWARDS),
    (CountsItsParts, UPWARDS),
    (CountsInReverse, UPWARDS),
    (GoesBackFromZero, DOWNWARDS),
]
RIGHT = [GoesBack, StartsBelowZero, HasOneLayer, IsNeverCalled, HasNoneToTheLeft, FillsUp, BeginsWithAnAnnotation]


@pytest.mark.parametrize(("kind", "way"), WRONG)
def test_a_loop_that_counts_the_wrong_way_is_found_at_its_line(kind: Callable[[], nn.Module], way: str) -> None:
    (finding,) = findings(kind)
    assert way in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("kind", RIGHT)
def test_a_loop_that_runs_or_may_run_is_none(kind: Callable[[], nn.Module]) -> None:
    assert findings(kind) == ()
