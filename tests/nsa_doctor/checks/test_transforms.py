"""A layer that computes by transforms of torch.func, and holds operators of torch.ops, is examined like any other."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Stored(nn.Module):
    """Adds to each token what one gradient step on its own loss makes of a memory's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.operator = nn.Linear(DIM, DIM), torch.ops.aten.mul
        loss = lambda weight, x: (x @ weight.mT - x).square().sum()  # noqa: E731
        self.surprise = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))

    def forward(self, x: Tensor) -> Tensor:
        surprise = self.surprise(self.memory.weight, x.flatten(0, 1))
        stepped = self.memory.weight - 0.1 * surprise
        return self.operator((stepped @ x.flatten(0, 1)[..., None])[..., 0].view_as(x), 0.5)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Stored()


SUBJECT = Subject(
    name="stored", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM, packages=("tests",)
)


@pytest.mark.parametrize("code", ["GRD401", "GRD402"])
def test_what_may_not_be_watched_is_no_fault_of_the_layer(code: str) -> None:
    result = run_check(registry.load(code), SUBJECT)
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())
    assert "does not let anybody watch what is saved" in result.reason


@pytest.mark.parametrize("code", ["GRD201", "GRD208", "GRD403", "GRD101", "FWD201"])
def test_it_passes_what_can_be_looked_at(code: str) -> None:
    result = run_check(registry.load(code), SUBJECT)
    assert (result.verdict, result.findings, result.reason) == (Verdict.PASS, (), "")
