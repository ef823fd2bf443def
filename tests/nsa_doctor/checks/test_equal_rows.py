"""Rows that begin equal and stay so are found; rows that begin equal and part are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Read(nn.Module):
    """Latents read the tokens, and tokens read the latents."""

    def __init__(self, latents: Tensor, places: Tensor | None = None) -> None:
        super().__init__()
        self.latents = nn.Parameter(latents)
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("places", torch.zeros(len(latents.squeeze()), WIDTH) if places is None else places)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.view(-1, WIDTH) + self.places
        read = (latents @ self.key(x).mT).softmax(-1) @ self.value(x)
        return x + (x @ read.mT).softmax(-1) @ read


class Ranked(nn.Module):
    """A low-rank update that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.down, self.up = (nn.Linear(*each) for each in ((WIDTH, WIDTH), (WIDTH, 2), (2, WIDTH)))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class Placed(nn.Module):
    """Learnt positions that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.layer = nn.Parameter(torch.zeros(1, 64, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.places[:, : x.shape[1]]).tanh()


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD225"), small_subject(make, width=WIDTH, max_length=64))


@pytest.mark.parametrize(
    "latents",
    [torch.zeros(4, WIDTH), torch.ones(1, 4, WIDTH), torch.randn(1, WIDTH).repeat(4, 1)],
    ids=["zeros", "ones", "one drawn"],
)
def test_latents_that_stay_copies_are_found(latents: Tensor) -> None:
    (finding,) = examined(lambda: Read(latents)).findings
    assert "the 4 rows of latents begin equal" in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda: Read(0.02 * torch.randn(4, WIDTH)),
        lambda: Read(torch.zeros(4, WIDTH), torch.eye(WIDTH)[:4]),
        lambda: Read(torch.zeros(1, WIDTH)),
        Ranked,
        Placed,
    ],
    ids=["drawn", "with places", "one alone", "low rank", "positions"],
)
def test_rows_that_part_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS
