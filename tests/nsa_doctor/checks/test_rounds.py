"""Rounds of which the last alone has a gradient are meant; a gradient that is lost on the way is not."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM, ROUNDS = 8, 3


class Recycled(nn.Module):
    """Reads its own result several times; `cut` says how the rounds before the last lose their gradient."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
        self.out, self.cut = nn.Linear(DIM, DIM), cut

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        rounds = 1 if self.cut == "drawn" and self.training else ROUNDS
        for number in range(rounds):
            is_last = number == rounds - 1
            keeps = self.cut != "all" and (is_last or self.cut not in ("no_grad", "drawn"))
            has_gradient = torch.is_grad_enabled() and keeps
            with torch.set_grad_enabled(has_gradient):
                state = self.block(x + (state.detach() if self.cut == "detach" else state))
        output: Tensor = self.out(state)
        return output


class Unrolled(nn.Module):
    """Other layers each time: what the first give is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Recycled("no").block for _ in range(ROUNDS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x.detach())
        return x


@pytest.mark.parametrize("code", ["GRD101", "GRD201"])
@pytest.mark.parametrize("cut", ["no_grad", "detach", "drawn", "no"])
def test_the_last_round_alone_may_have_a_gradient(code: str, cut: str) -> None:
    result = run_check(registry.load(code), embedding_subject(lambda: Recycled(cut)))
    assert result.findings == ()
    if code == "GRD101":
        assert [note.partition(" ")[0] for note in result.notes] == ["block"] * (cut != "no")


@pytest.mark.parametrize(("code", "make"), [("GRD101", Unrolled), ("GRD201", lambda: Recycled("all"))])
def test_a_gradient_that_no_round_has_is_found(code: str, make: type[nn.Module]) -> None:
    assert len(run_check(registry.load(code), embedding_subject(make)).findings) == 1
