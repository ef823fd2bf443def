"""A hand-written backward that is wrong is named also where a pass cannot be followed from tensor to tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.probes.gradients.local_gradients import wrong_function
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Scaled(torch.autograd.Function):
    """x * scale; `Short` forgets the last token in the gradient of the scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return given[0] * scale, (given[0] * x).sum((0, 1))


class Short(Scaled):
    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return given[0] * scale, (given[0] * x)[:, :-1].sum((0, 1))


class Routed(nn.Module):
    """Tokens go to one of two layers by the sign of a score, so that a small move changes how many go where."""

    def __init__(self, function: type[Scaled]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(DIM))
        self.score = nn.Linear(DIM, 1)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.function.apply(x, self.scale)
        chosen = self.score(x).squeeze(-1) > 0
        output = torch.zeros_like(x)
        output[chosen] = self.experts[0](x[chosen])
        output[~chosen] = self.experts[1](x[~chosen])
        return output


def subject_of(function: type[Scaled]) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Routed(function)

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(name="routed", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",))


@pytest.mark.parametrize(("function", "wrong"), [(Scaled, None), (Short, Short)])
def test_a_function_is_held_against_its_own_forward(function: type[Scaled], wrong: type | None) -> None:
    sp = built(subject_of(function), dtype="float64")
    found = wrong_function(sp, sp.input(17))
    assert (found and found.function) is wrong


def test_the_backward_is_named_where_tokens_are_routed() -> None:
    (finding,) = run_check(registry.load("GRD101"), subject_of(Short)).findings
    assert "it goes wrong in the backward of Short" in finding.message
    assert (finding.where.file, finding.where.function) == (__file__, "backward")
