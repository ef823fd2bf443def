"""What a long sequence alone rounds is a note: a state that is carried in half precision from piece to piece."""

import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, PIECE = 8, 64


class Carries(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(WIDTH, WIDTH), dtype

    def forward(self, x: Tensor) -> Tensor:
        state, parts = torch.zeros_like(x[:, :1]), []
        for part in x.split(PIECE, dim=1):
            parts.append(self.layer(part).tanh() + state)
            state = part[:, -1:].to(self.dtype).to(x.dtype)
        return torch.cat(parts, dim=1)


def notes(dtype: torch.dtype) -> list[str]:
    result = run_check(registry.load("FWD305"), small_subject(lambda: Carries(dtype), width=WIDTH))
    assert result.findings == ()
    return list(result.notes)


def test_a_state_that_is_carried_in_half_precision_is_a_note() -> None:
    (note,) = notes(torch.bfloat16)
    assert "values pass through bfloat16, narrower than float32" in note


def test_a_state_of_its_own_precision_is_silent() -> None:
    assert notes(torch.float32) == []
