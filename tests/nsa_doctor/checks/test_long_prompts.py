"""A prompt that is taken in as several pieces gives what it gives whole, and that is found where it does not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH, PIECE = 8, 192


class Attention(nn.Module):
    """Causal attention over keys that are kept; a prompt is taken in piece by piece."""

    def __init__(self, forgets: int) -> None:
        super().__init__()
        self.qkv, self.forgets = nn.Linear(WIDTH, 3 * WIDTH), forgets

    def piece(self, x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        kept = torch.cat((kept, torch.stack((k, v))), 2)
        hidden = torch.ones(q.shape[1], kept.shape[2], dtype=torch.bool).triu(kept.shape[2] - q.shape[1] + 1)
        return (q @ kept[0].mT).masked_fill(hidden, -torch.inf).softmax(-1) @ kept[1], kept

    def forward(self, x: Tensor) -> Tensor:
        return self.piece(x, x.new_zeros(2, len(x), 0, WIDTH))[0]

    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        kept, outputs = x.new_zeros(2, len(x), 0, WIDTH), []
        for part in x.split(PIECE, 1):
            output, kept = self.piece(part, kept[:, :, self.forgets if kept.shape[2] else 0 :])
            outputs.append(output)
        return torch.cat(outputs, 1), kept


def examined(forgets: int) -> Result:
    subject = Subject(
        name="pieces",
        build=lambda seed: (torch.manual_seed(seed), Attention(forgets))[1],
        forward=lambda module, x: module(x),
        prefill=lambda module, x: module.prefill(x),
        step=lambda module, x, kept: module.piece(x, kept),
        input="embeddings",
        width=WIDTH,
        max_length=400,
        packages=("tests",),
    )
    return run_check(registry.load("DEC106"), subject)


@pytest.mark.parametrize(("forgets", "verdict"), [(0, Verdict.PASS), (1, Verdict.FAIL)])
def test_a_piece_that_forgets_what_came_before_is_found(forgets: int, verdict: Verdict) -> None:
    result = examined(forgets)
    assert result.verdict is verdict
    assert all("after a prompt of 260 tokens" in finding.message for finding in result.findings)
