"""Gates that no token could move: of what a row is given beside its tokens, and in a branch that nothing reads."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 12


class Gated(nn.Module):
    """A gated branch beside its input; `cuts` its gate off."""

    def __init__(self, *, cuts: bool = False) -> None:
        super().__init__()
        self.gate, self.value, self.cuts = nn.Linear(DIM, 3), nn.Linear(DIM, DIM), cuts

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        weights = weights.detach() if self.cuts else weights
        parts = self.value(x).unflatten(-1, (3, -1)) * weights[..., None]
        return x + parts.flatten(-2)


class LeavesOneOut(nn.Module):
    """Two branches, of which the second is handed to no other layer."""

    def __init__(self, *, cuts: bool = False) -> None:
        super().__init__()
        self.read, self.unread = Gated(cuts=cuts), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return (self.read(x), self.unread(x))[0]


class OfRows(nn.Module):
    """A gate of what is known of a row, which is the same for all where nobody says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(4, 3), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        known = x.new_ones(len(x), 4) if known is None else known
        weights = self.gate(known).softmax(-1)
        return x + (self.value(x).unflatten(-1, (3, -1)) * weights[:, None, :, None]).flatten(-2)


class OfZeros(OfRows):
    """A gate of tokens that is fed with zeros."""

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        weights = self.gate(torch.zeros_like(x)[..., :4]).softmax(-1)
        return x + (self.value(x).unflatten(-1, (3, -1)) * weights[..., None]).flatten(-2)


def examined(code: str, module: nn.Module) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
        return module

    subject = Subject(name="x", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize("module", [Gated(), LeavesOneOut(), OfRows()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("code", ["GAT102", "GAT105"])
def test_nothing_is_found_of_gates_that_are_as_they_should_be(code: str, module: nn.Module) -> None:
    result = examined(code, module)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("module", [Gated(cuts=True), LeavesOneOut(cuts=True)], ids=lambda each: type(each).__name__)
def test_a_gate_that_is_cut_off_from_what_is_read_is_found(module: nn.Module) -> None:
    (finding,) = examined("GAT105", module).findings
    assert "get no gradient after 2 optimizer steps, though what they weigh reaches the output" in finding.message


def test_a_gate_of_tokens_that_is_fed_with_zeros_is_found() -> None:
    (finding,) = examined("GAT102", OfZeros()).findings
    assert "gives every token the weights" in finding.message
