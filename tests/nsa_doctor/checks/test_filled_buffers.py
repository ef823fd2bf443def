"""A table in a buffer, and beside it the number of its rows that are filled, is state of one kind: healthy."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, ROWS = 8, 4096
CODES = ("FWD206", "FWD210", "FWD211", "FWD212", "FWD220", "FWD221", "FWD222", "FWD223", "GRD104", "GRD107", "GRD108")


class Rotated(nn.Module):
    """Turns pairs of channels by angles of a table that it fills as far as it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.register_buffer("angles", torch.zeros(ROWS, DIM // 2), persistent=False)
        self.num_filled = 0

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.num_filled:
            rates = 0.5 ** torch.arange(DIM // 2, device=x.device, dtype=x.dtype)
            self.angles[:length] = torch.arange(length, device=x.device, dtype=x.dtype)[:, None] * rates
            self.num_filled = length
        angles = self.angles[:length].to(x.dtype)
        even, odd = self.mix(x).chunk(2, -1)
        return torch.cat((even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), -1)


class Counting(Rotated):
    """Every third training pass is scaled, by a count that lies beside no buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.num_filled = ROWS  # with angles of zero

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().forward(x) * (2.0 if self.passes % 3 == 2 else 1.0)


def subject_of(make: type[nn.Module], seed: int = 0) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(
        name="filled", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",), seed=seed
    )


@pytest.mark.parametrize("code", CODES)
def test_a_table_and_how_far_it_is_filled_belong_together(code: str) -> None:
    result = run_check(registry.load(code), subject_of(Rotated))
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_a_count_of_passes_is_found_all_the_same() -> None:
    result = run_check(registry.load("GRD104"), subject_of(Counting))
    assert [finding.code for finding in result.findings] == ["GRD104"]


class KeptBySize(nn.Module):
    """Positions that are kept for calls of the same size, where no conversion of the module reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.kept = nn.Linear(DIM, DIM), None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape != x.shape:
            steps = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)[:, None]
            self.kept = torch.sin(steps * 0.1 * torch.arange(DIM, dtype=x.dtype, device=x.device)).expand(x.shape)
        return self.mix(x + self.kept)


def test_positions_that_a_conversion_leaves_behind_are_found() -> None:
    (finding,) = run_check(registry.load("FWD210"), subject_of(KeptBySize)).findings
    assert "at S=19, B=2 gives another result" in finding.message
