"""Where scores depend on where equal tokens stand, the line is that which turns queries and keys, or leaves one out."""

import linecache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 16


def angles(length: int, fault: str) -> Tensor:
    """An angle of every pair of channels for each position."""
    frequency = 10_000.0 ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    at = torch.arange(length, dtype=torch.float64)
    if fault.startswith("grid"):  # rows of 12 places: half of the channels tell the row, half the column
        row, column = at // 12, at % 12
        half = frequency[: DIM // 4] * 2.0
        return torch.cat((row[:, None] * half, column[:, None] * half), -1)
    return at[:, None] * frequency if fault != "table" else at[:, None].bfloat16().double() * frequency


def turned(x: Tensor, fault: str) -> Tensor:
    """Pairs of halves, turned by the position."""
    angle = angles(x.shape[1], fault).to(x.dtype)
    cos, sin = angle.cos(), angle.sin()  # table
    one, other = x.chunk(2, -1)
    if fault == "helper":
        return torch.cat((one * cos - other * sin, other * cos - one * sin), -1)  # helper
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


class Attention(nn.Module):
    """One head; `fault` is what is wrong with its rotation."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def projected(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) * 1.5

    def forward(self, x: Tensor) -> Tensor:
        q = turned(self.projected(self.q, x), self.fault)
        k = self.projected(self.k, x)  # keys
        if self.fault not in ("keys", "grid without keys"):
            k = turned(k, self.fault)
        if self.fault == "twice":
            k = turned(k, self.fault)  # twice
        return scaled_dot_product_attention(q, k, self.v(x), is_causal=True)


def examined(fault: str) -> Result:
    subject = Subject(
        name="turned",
        build=lambda seed: (torch.manual_seed(seed), Attention(fault))[1],
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        packages=("tests",),
        profile="quick",
    )
    return run_check(registry.load("FWD218"), subject)


@pytest.mark.parametrize("fault", ["keys", "helper", "table"])
def test_the_line_that_turns_or_does_not_is_named(fault: str) -> None:
    (finding,) = examined(fault).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith(f"# {fault}"), finding.where


def test_keys_that_are_turned_twice_are_found_where_keys_are_turned() -> None:
    (finding,) = examined("twice").findings
    assert "k = turned(k" in linecache.getline(finding.where.file, finding.where.line), finding.where


def test_rows_and_columns_of_an_image_are_positions_too() -> None:
    assert not examined("grid").findings
    assert examined("grid without keys").findings


def test_what_is_turned_rightly_is_silent() -> None:
    assert examined("").findings == ()
