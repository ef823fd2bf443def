"""Waves that are projected and hold each column twice are found; whole, repeated and single ones are silent."""

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


class Timed(nn.Module):
    """Projects waves of a time, 0 where none is given."""

    def __init__(self, one: Wave = torch.cos, other: Wave = torch.sin) -> None:
        super().__init__()
        self.layer, self.time, self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), one, other

    def features(self, x: Tensor) -> Tensor:
        angles = torch.zeros(len(x), 1) * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        return torch.cat((self.one(angles), self.other(angles)), -1).to(x)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.time(self.features(x))).tanh()


class Placed(Timed):
    """Projects waves of positions, kept in a buffer that is filled by columns."""

    def __init__(self, one: Wave = torch.sin, other: Wave = torch.cos) -> None:
        super().__init__(one, other)
        angles = torch.arange(512)[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        table = torch.zeros(512, WIDTH)
        table[:, 0::2] = one(angles)
        table[:, 1::2] = other(angles)
        self.register_buffer("table", table)

    def features(self, x: Tensor) -> Tensor:
        table: Tensor = self.table
        return table[: x.shape[1]]


class Paired(Timed):
    """Computes the angles of each kind anew, one beside another."""

    def features(self, x: Tensor) -> Tensor:
        def angles() -> Tensor:
            return torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)

        return torch.stack((self.one(angles()), self.other(angles())), -1).flatten(-2).to(x)


class Turned(Timed):
    """Multiplies tokens by waves that stand twice, and projects them then."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        cos, sin = (torch.cat((wave, wave), -1).to(x) for wave in (angles.cos(), angles.sin()))
        turned = torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1)
        return self.layer(x * cos + turned * sin).tanh()


class TwoAxes(Timed):
    """Rows and columns of a square whose waves are equal where the two are."""

    def features(self, x: Tensor) -> Tensor:
        place, steps = torch.arange(x.shape[1]), 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        rows, columns = place[:, None] // 4 * steps, place[:, None] % 4 * steps
        return torch.cat((self.one(rows), self.one(columns)), -1).to(x)


class Drawn(Timed):
    """Random features of positions: cosines alone, each of its own phase."""

    def features(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        steps, phase = torch.randn(2, WIDTH, generator=generator)
        return self.one(torch.arange(x.shape[1])[:, None] * steps + phase).to(x)


class Padded(Timed):
    """One kind of waves beside zeros."""

    def features(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        return nn.functional.pad(self.one(angles), (0, WIDTH // 2)).to(x)


class Single(Timed):
    """One frequency for all channels."""

    def features(self, x: Tensor) -> Tensor:
        return (torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH) / 10).sin().to(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD245"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize("kind", [Timed, Placed, Paired])
@pytest.mark.parametrize("wave", [torch.sin, torch.cos])
def test_projected_waves_that_stand_twice_are_found(wave: Wave, kind: type[Timed]) -> None:
    (finding,) = examined(lambda: kind(wave, wave)).findings
    assert "the table of waves that is projected holds each of its 16 columns more than once: 8" in finding.message
    assert finding.where.function == ("__init__" if kind is Placed else "features")


@pytest.mark.parametrize("kind", [Timed, Placed, Paired, Turned, TwoAxes, Drawn, Padded])
def test_waves_that_stand_once_or_are_not_projected_are_silent(kind: type[Timed]) -> None:
    assert examined(kind).verdict is Verdict.PASS


def test_a_single_frequency_is_no_doubled_table() -> None:
    assert not any("projected" in each.message for each in examined(Single).findings)
