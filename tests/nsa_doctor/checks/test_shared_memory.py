"""Parameters that hold the same memory are found; one parameter under two names, and views side by side, are not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Two(nn.Module):
    def __init__(self, tie: Callable[[nn.Linear, nn.Linear], None]) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        tie(self.down, self.up)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def by_data(down: nn.Linear, up: nn.Linear) -> None:
    up.weight.data = down.weight.data


def transposed(down: nn.Linear, up: nn.Linear) -> None:
    up.weight = nn.Parameter(down.weight.data.T)


def overlapping(down: nn.Linear, up: nn.Linear) -> None:
    whole = torch.randn(DIM + 1, DIM)
    down.weight, up.weight = nn.Parameter(whole[:-1]), nn.Parameter(whole[1:])


def properly(down: nn.Linear, up: nn.Linear) -> None:
    up.weight = down.weight


def side_by_side(down: nn.Linear, up: nn.Linear) -> None:
    columns = torch.randn(DIM, 2 * DIM)
    down.weight, up.weight = nn.Parameter(columns[:, :DIM]), nn.Parameter(columns[:, DIM:])


def frozen(down: nn.Linear, up: nn.Linear) -> None:
    up.weight = nn.Parameter(down.weight.data, requires_grad=False)


def result(tie: Callable[[nn.Linear, nn.Linear], None]) -> Result:
    subject = Subject(
        name="tests", build=lambda seed: Two(tie), forward=lambda m, x: m(x), input="embeddings", width=DIM
    )
    return run_check(registry.load("GRD211"), subject)


@pytest.mark.parametrize(("tie", "count"), [(by_data, 64), (transposed, 64), (overlapping, 56)])
def test_shared_memory_is_found(tie: Callable[[nn.Linear, nn.Linear], None], count: int) -> None:
    (finding,) = result(tie).findings
    assert finding.evidence["parameters"] == "down.weight,up.weight"
    assert finding.evidence["num_values"] == count


@pytest.mark.parametrize("tie", [properly, side_by_side, frozen])
def test_what_an_optimizer_steps_once_is_silent(tie: Callable[[nn.Linear, nn.Linear], None]) -> None:
    assert result(tie).findings == ()
