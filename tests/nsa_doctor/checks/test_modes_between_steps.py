"""A step that leaves parts in evaluation mode is found at the line that does; modes that are meant are not."""

import copy

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Tagger(nn.Module):
    """Values to logits, behind dropout; with `looks` at its weights in the ways of real code."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed, self.dropout, self.head = nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.teacher = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))

    def weights(self) -> Tensor:
        if self.way == "a look at weights":
            self.eval()  # here: a look at weights
        return self.head.weight

    def train(self, mode: bool = True) -> "Tagger":
        super().train(mode)
        if self.way == "a frozen part":
            self.dropout.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "a teacher":
            self.teacher.eval()
        if self.way == "before it drops":
            self.eval()  # here: before it drops
        hidden = self.dropout(self.norm(self.embed(x).mT).mT)
        if self.way == "one part":
            self.dropout.train(False)  # here: one part
        if self.way == "there and back":
            was = self.training
            self.eval()
            self.train(was)
        return hidden @ self.weights().T + 0 * self.teacher(x)


def step(module: Tagger, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    module.count = getattr(module, "count", -1) + 1
    if module.way == "each step trains":
        module.train()
    if module.way == "takes turns" and module.count % 2:
        module.eval()
    if module.way == "measures first" and module.count:
        module.eval()
        module(x)
        module.train()
    if module.way == "a copy":
        copy.deepcopy(module).eval()(x)
    optimizer.zero_grad()
    loss = module(x).square().mean()
    loss.backward()
    optimizer.step()
    if module.way == "takes turns":
        module.train()
    if module.way == "a teacher afterwards":
        module.teacher.requires_grad_(False).eval()
    if module.way == "norms frozen":
        module.norm.eval()
    if module.way == "each step trains":
        module.eval()
    if module.way == "measured at the end":
        module.eval()  # here: measured at the end
    return loss.detach()


def examined(way: str, *, with_step: bool) -> tuple[str, ...]:
    subject = Subject(
        name=way,
        input="embeddings",
        width=8,
        build=lambda _seed: Tagger(way),
        forward=lambda module, x: module(x),
        train_step=step if with_step else None,
        packages=(__name__,),
    )
    result = run_check(registry.load("GRD238"), subject)
    assert result.verdict in ("PASS", "FAIL"), result.reason
    with open(__file__) as file:
        lines = file.read().split("\n")
    return tuple(lines[each.where.line - 1].partition("# here: ")[2] for each in result.findings)


@pytest.mark.parametrize("way", ["a look at weights", "before it drops", "one part"])
@pytest.mark.parametrize("with_step", [True, False], ids=["step", "forward"])
def test_what_a_call_leaves_in_evaluation_mode_is_found(way: str, with_step: bool) -> None:
    assert examined(way, with_step=with_step) == (way,)


def test_a_step_that_ends_in_evaluation_mode_is_found() -> None:
    assert examined("measured at the end", with_step=True) == ("measured at the end",)


@pytest.mark.parametrize("way", ["takes turns", "measures first", "a copy", "a teacher afterwards", "norms frozen"])
def test_a_step_with_modes_of_its_own_is_left_alone(way: str) -> None:
    assert examined(way, with_step=True) == ()


@pytest.mark.parametrize("way", ["plain", "a teacher", "a frozen part", "there and back", "each step trains"])
@pytest.mark.parametrize("with_step", [True, False], ids=["step", "forward"])
def test_a_mode_that_is_meant_is_left_alone(way: str, with_step: bool) -> None:
    assert examined(way, with_step=with_step) == ()
