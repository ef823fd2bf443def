"""Checks serve modules whose parts bear the names of nn.Module's own methods."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject


class Block(nn.Module):
    """A feed-forward part that registers what it keeps in a list of its own, under the name of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.parameters = nn.ModuleList(self.layers)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        return x + second(torch.relu(first(self.norm(x))))


class Model(nn.Module):
    """Two of them, which the model's own methods can still be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize(
    "code", ["FWD213", "FWD232", "FWD237", "FWD269", "GRD201", "GRD202", "GRD208", "GRD211", "GRD232", "PRF303"]
)
def test_a_part_is_found_under_any_name(code: str) -> None:
    result = run_check(registry.load(code), small_subject(Model, width=8))
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), result.reason
