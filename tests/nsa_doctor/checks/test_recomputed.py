"""Activation checkpointing computes again what forward computed, or the call that does not is named."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8
Way = Callable[["Stack", nn.Module, Tensor], Tensor]


class Stack(nn.Module):
    """Layers, each called in a given way."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.way, self.scale = way, torch.ones(())

    def noisy(self, x: Tensor) -> Tensor:
        return F.dropout(self.layers[0](x).tanh(), 0.3)

    def scaled(self, x: Tensor) -> Tensor:
        return self.layers[0](x).tanh() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            self.current = layer
            x = self.way(self, layer, x)
            self.scale = torch.full((), 2.0)
        self.scale = torch.ones(())
        return x


FAULTY: dict[str, Way] = {
    "late attribute": lambda stack, layer, x: checkpoint(lambda h: stack.current(h).tanh(), x, use_reentrant=False),
    "other noise": lambda stack, layer, x: checkpoint(stack.noisy, x, use_reentrant=False, preserve_rng_state=False),
    "other scale": lambda stack, layer, x: checkpoint(stack.scaled, x, use_reentrant=False),
}
HEALTHY: dict[str, Way] = {
    "its layer": lambda stack, layer, x: checkpoint(lambda h: layer(h).tanh(), x, use_reentrant=False),
    "the same noise": lambda stack, layer, x: checkpoint(stack.noisy, x, use_reentrant=False),
    "reentrant": lambda stack, layer, x: checkpoint(stack.noisy, x + 0 * layer.bias, use_reentrant=True),
}


def examined(way: Way) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Stack(way)

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(name="stack", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",))
    return run_check(registry.load("GRD111"), subject)


@pytest.mark.parametrize("kind", FAULTY)
def test_the_call_that_computes_something_else_is_named(kind: str) -> None:
    (finding,) = examined(FAULTY[kind]).findings
    assert finding.where.file == __file__
    assert f'"{kind}"' in linecache.getline(__file__, finding.where.line)


@pytest.mark.parametrize("kind", HEALTHY)
def test_what_is_computed_again_alike_is_no_finding(kind: str) -> None:
    result = examined(HEALTHY[kind])
    assert (result.verdict, result.findings) == ("PASS", ())
