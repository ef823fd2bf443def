"""A stream and a part that are subtracted are found beside a part that is added; subtractions on purpose are silent."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Block(nn.Module):
    """Two parts that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(self.first(x)).tanh()
        return x + self.other(self.second(x)).tanh()


class Less(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(self.first(x)).tanh()
        return x - self.other(self.second(x)).tanh()  # here


class LessTheStream(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.first(x)).tanh() - x  # here
        return x + self.other(self.second(x)).tanh()


class BackCast(Block):
    """What each part explains is taken away."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.one(self.first(x)).tanh()
        return x - self.other(self.second(x)).tanh()


class WithoutItsMean(Block):
    """The trend is taken away first."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        return super().forward(x)


class Difference(Block):
    """What a part adds is the difference of two."""

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        return x + (self.one(normed).tanh() - 0.5 * self.other(normed).tanh())


def examined(block: type[nn.Module]) -> Result:
    make: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), block(), block())  # noqa: E731
    return run_check(registry.load("FWD254"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize("block", [Less, LessTheStream])
def test_a_part_that_is_subtracted_beside_one_that_is_added_is_found(block: type[nn.Module]) -> None:
    (finding,) = examined(block).findings
    assert finding.message.endswith("are subtracted, where forward adds those of another part; so does 1 more")
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("block", [Block, BackCast, WithoutItsMean, Difference])
def test_subtractions_on_purpose_are_silent(block: type[nn.Module]) -> None:
    assert examined(block).verdict is Verdict.PASS
