"""A loop over chunks, of which torch's own scans take each apart, is none over tokens; one over tokens is found."""

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 4


def _followed(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of two recurrences side by side."""
    first, second = one[0] * other[0], one[2] * other[2]
    return first, other[0] * one[1] + other[1], second, other[2] * one[3] + other[3]


class Chunks(nn.Module):
    """A recurrence y = a * y + b, in chunks of so many tokens."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.decay, self.size = nn.Linear(DIM, DIM), size

    def forward(self, x: Tensor) -> Tensor:
        decays, state, outputs = self.decay(x).sigmoid(), x.new_zeros(len(x), 1, DIM), []
        for a, b in zip(decays.split(self.size, 1), x.split(self.size, 1), strict=True):
            given = (*a.chunk(2, -1), *b.chunk(2, -1))
            parts = (given[0], given[2], given[1], given[3])
            scanned = associative_scan(_followed, parts, dim=1, combine_mode="generic") if a.shape[1] > 1 else parts
            decayed, added = torch.cat(scanned[::2], -1), torch.cat(scanned[1::2], -1)
            outputs.append(decayed * state + added)
            state = outputs[-1][:, -1:]
        return torch.cat(outputs, 1)


class Tokens(nn.Module):
    """A map of each token, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.map(token) for token in x.split(1, 1)], 1)


def examined(kind: type[nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return kind()

    subject = Subject(name="x", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM)
    return run_check(registry.load("PRF101"), subject)


def test_a_loop_over_chunks_is_silent() -> None:
    result = examined(Chunks)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("kind", [Tokens])
def test_a_loop_over_tokens_is_found(kind: type[nn.Module]) -> None:
    assert "a loop over tokens" in examined(kind).findings[0].message
