"""One of stacked weights whose result is written over is found; one that nothing is sent to is left alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, EXPERTS = 8, 4
Route = Callable[[Tensor], Tensor]


class Experts(nn.Module):
    """The two most probable experts of each token, one after another."""

    def __init__(self, adds: bool, route: Route = lambda scores: scores) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, DIM, DIM))
        self.adds, self.route = adds, route

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        gates, chosen = self.route(self.router(flat)).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for expert in range(EXPERTS):
            token, rank = (chosen == expert).nonzero(as_tuple=True)
            result = gates[token, rank, None] * (flat[token] @ self.weight[expert])
            out = out.index_add(0, token, result) if self.adds else out.index_copy(0, token, result)
        return x + out.view_as(x)


def result(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=DIM)
    return run_check(registry.load("GRD212"), subject)


def with_one_in_reserve(scores: Tensor) -> Tensor:
    return scores.index_fill(-1, torch.tensor([2]), torch.finfo(scores.dtype).min)


def test_an_expert_that_is_written_over_is_found() -> None:
    (finding,) = result(lambda: Experts(adds=False)).findings
    assert finding.evidence["parameters"] == "weight[0]"
    assert (finding.where.file, finding.where.function) == (__file__, "forward")


@pytest.mark.parametrize("route", [lambda scores: scores, with_one_in_reserve])
def test_experts_that_are_added_or_in_reserve_are_silent(route: Route) -> None:
    assert result(lambda: Experts(adds=True, route=route)).findings == ()
