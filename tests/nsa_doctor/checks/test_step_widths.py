"""A step whose output is of another width than what came before is found where the module's own method made it."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked

WIDTH = 8


class Running(nn.Module):
    """The mean of the tokens so far, and a head that its step forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.cumsum(1)))

    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), x.sum(1, keepdim=True)

    def step(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = total + x
        return self.norm(total), total  # here


def test_a_step_of_another_width_is_found_where_the_module_makes_it() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Running()

    subject = adapt(SubjectRequest(spec="x:y", input="embeddings", width=WIDTH, lengths=(16,)), make)
    subject = replace(
        subject,
        prefill=lambda module, x: module.prefill(x),
        step=lambda module, x, cache: module.step(x, cache),
        packages=("tests",),
    )
    result = run_check(registry.load("DEC101"), subject)
    assert result.verdict is Verdict.FAIL
    finding = result.findings[0]
    assert "a step returned [1, 1, 8], after tokens of 12 values each" in finding.message
    assert is_marked(finding.where.file, finding.where.line)
