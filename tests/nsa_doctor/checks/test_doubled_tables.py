"""A table of positions that holds its columns twice is found where it is added to tokens; others are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 16
Wave = Callable[[Tensor], Tensor]


class Placed(nn.Module):
    """Adds waves of each frequency, one kind beside another."""

    def __init__(self, one: Wave = torch.sin, other: Wave = torch.cos, how: str = "halves") -> None:
        super().__init__()
        self.layer, self.one, self.other, self.how = nn.Linear(WIDTH, WIDTH), one, other, how

    def table(self, length: int) -> Tensor:
        angles = torch.arange(length)[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        if self.how == "halves":
            return torch.cat((self.one(angles), self.other(angles)), -1)
        return torch.stack((self.one(angles), self.other(angles)), -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.table(x.shape[1]).to(x)).tanh()


class Turned(Placed):
    """Multiplies by a table that holds its columns twice, as rotations do."""

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1)
        angles = torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        cos, sin = (torch.cat((wave, wave), -1).to(x) for wave in (angles.cos(), angles.sin()))
        return self.layer(x * cos + turned * sin).tanh()


class Shifted(Placed):
    """Adds a number of no axes."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.tensor(0.5)).tanh()


class Segments(Placed):
    """Adds one row to all tokens."""

    def table(self, length: int) -> Tensor:
        return torch.ones(length, WIDTH)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD245"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize("how", ["halves", "pairs"])
@pytest.mark.parametrize("wave", [torch.sin, torch.cos])
def test_waves_that_stand_twice_are_found(wave: Wave, how: str) -> None:
    (finding,) = examined(lambda: Placed(wave, wave, how)).findings
    assert "holds each of its 16 columns more than once: 8 are unlike" in finding.message
    assert finding.where.function == "table"


@pytest.mark.parametrize("make", [Placed, lambda: Placed(how="pairs"), Turned, Segments, Shifted])
def test_other_tables_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS
