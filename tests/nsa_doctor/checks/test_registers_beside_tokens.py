"""Scores of tokens beside registers are judged as those of tokens alone."""

from collections.abc import Callable
from linecache import getline

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, HEADS, D, REGISTERS = 16, 2, 8, 3
Tables = tuple[Tensor, Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tables:
    return rotate(q, cos, sin), rotate(k, cos, sin)


def exchanged(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tables:
    q = rotate(q, cos, sin)
    return q, rotate(k, sin, cos)


def queries_alone(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tables:
    return rotate(q, cos, sin), k


class Registered(nn.Module):
    """Attention of tokens and registers, the latter at position 0, before or behind."""

    def __init__(self, turn: Callable[..., Tables] = both, *, is_before: bool = True, is_placed: bool = False) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.randn(REGISTERS, WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.turn, self.is_before, self.is_placed = turn, is_before, is_placed

    def forward(self, x: Tensor) -> Tensor:
        length, registers = x.shape[1], self.registers.expand(len(x), -1, -1)
        beside = (REGISTERS, 0) if self.is_before else (0, REGISTERS)
        h = torch.cat((registers, x) if self.is_before else (x, registers), dim=1)
        place = pad(torch.arange(length).to(x), beside)
        if self.is_placed:
            h = h + place[:, None].sin()
        angle = place[:, None] * 100.0 ** (-torch.arange(0, D, 2) / D)
        for _ in range(2):
            q, k, v = self.qkv(h).unflatten(-1, (3, HEADS, D)).permute(2, 0, 3, 1, 4)
            q, k = self.turn(q, k, angle.cos().to(x), angle.sin().to(x))
            h = h + self.out(((q @ k.mT / D**0.5).softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return h[:, REGISTERS:] if self.is_before else h[:, :length]


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD218"), small_subject(make, width=WIDTH, spec=("bidirectional",)))


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("turn", "line"), [(exchanged, "return q, rotate(k, sin, cos)"), (queries_alone, "q, k, v = self.qkv(h)")]
)
def test_keys_that_are_turned_otherwise_are_found(turn: Callable[..., Tables], line: str, is_before: bool) -> None:
    (finding,) = examined(lambda: Registered(turn, is_before=is_before)).findings
    assert "scores between equal tokens depend on where they stand" in finding.message
    assert getline(finding.where.file, finding.where.line).strip().startswith(line)


@pytest.mark.parametrize("is_placed", [True, False], ids=["placed", "unplaced"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "behind"])
def test_healthy_rotations_beside_registers_are_silent(is_before: bool, is_placed: bool) -> None:
    assert examined(lambda: Registered(is_before=is_before, is_placed=is_placed)).verdict is Verdict.PASS
