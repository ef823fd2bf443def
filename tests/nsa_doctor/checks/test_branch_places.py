"""What a branch of the subject's own changes is named at the line of that branch, in the module that holds it."""

import linecache
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Mean(torch.autograd.Function):
    """The identity, whose gradient is that of the mean of all rows."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mean(0).expand_as(gradient)


class Part(nn.Linear):
    """A linear layer that remembers its calls, and takes a branch by them or by what it is given."""

    def __init__(self, is_taken: Callable[["Part", Tensor], bool], effect: Callable[[Tensor], Tensor]) -> None:
        super().__init__(8, 8)
        self.is_taken, self.effect = is_taken, effect
        self.calls, self.rows = 0, None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.is_taken(self, x):
            y = self.effect(y)  # the branch
        self.calls, self.rows = self.calls + 1, x.shape[0]
        return y


class Model(nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(x.tanh())


def findings(
    code: str, is_taken: Callable[[Part, Tensor], bool], effect: Callable[[Tensor], Tensor]
) -> tuple[Finding, ...]:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Model(Part(is_taken, effect))

    subject = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8, max_length=128)
    return run_check(registry.load(code), replace(subject, packages=("tests",))).findings


def first_finding(code: str, is_taken: Callable[[Part, Tensor], bool], effect: Callable[[Tensor], Tensor]) -> Finding:
    return findings(code, is_taken, effect)[0]


def assert_is_at_the_branch(finding: Finding) -> None:
    assert (finding.where.module, finding.where.function) == ("part", "forward")
    assert "# the branch" in linecache.getline(__file__, finding.where.line)


def is_other_process(part: Part, x: Tensor) -> bool:
    return os.getpid() % 7 == (NUMBER + 1) % 7


NUMBER = os.getpid()


@pytest.mark.parametrize(
    ("code", "is_taken"),
    [
        ("FWD212", lambda part, x: torch.is_anomaly_enabled()),
        ("FWD205", lambda part, x: x.stride(0) < x.stride(1)),
        ("FWD225", lambda part, x: x.device.index == 1),
    ],
)
def test_what_raises_behind_a_branch_is_placed_at_the_branch(code: str, is_taken) -> None:
    assert_is_at_the_branch(first_finding(code, is_taken, lambda y: y[:, 1:]))


@pytest.mark.parametrize(
    "is_taken",
    [
        lambda part, x: part.calls == 1,
        lambda part, x: part.rows not in (None, x.shape[0]),
    ],
)
def test_a_gradient_that_earlier_calls_change_is_placed_at_the_branch(is_taken) -> None:
    assert_is_at_the_branch(first_finding("GRD101", is_taken, lambda y: 2 * y - y.detach()))


def test_a_gradient_that_a_length_changes_is_placed_at_the_branch() -> None:
    assert_is_at_the_branch(first_finding("GRD109", lambda part, x: x.shape[1] % 2 == 1, Mean.apply))


def test_draws_of_training_without_gradients_alone_are_placed_at_the_branch() -> None:
    def is_watched(part: Part, x: Tensor) -> bool:
        return part.training and not torch.is_grad_enabled()

    finding = first_finding("FWD207", is_watched, lambda y: y + torch.randn_like(y))
    assert "draws random numbers under no_grad" in finding.message
    assert_is_at_the_branch(finding)


@pytest.mark.parametrize("is_taken", [lambda part, x: part.training, lambda part, x: torch.is_grad_enabled()])
def test_draws_of_training_as_it_is_are_no_finding(is_taken) -> None:
    assert findings("FWD207", is_taken, lambda y: y * torch.rand_like(y)) == ()


@pytest.mark.parametrize("effect", [lambda y: 1.5 * y, lambda y: 2 * y - y.detach()])
def test_what_the_number_of_a_process_changes_is_placed_where_it_cannot_be_copied(monkeypatch, effect) -> None:
    monkeypatch.setattr("nsa_doctor.checks.fwd.fwd211_process_changes_output.can_be_forked", lambda: False)
    where = first_finding("FWD211", is_other_process, effect).where
    assert (where.module, where.file) == ("part", __file__)
    assert "lambda y: 1.5 * y" in linecache.getline(__file__, where.line)
