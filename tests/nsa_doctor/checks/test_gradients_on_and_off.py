"""Training mode gives one output, whether its gradients are recorded or not."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject


class _Quantizes(nn.Module):
    """Whole numbers, with an estimate of their gradient where there is one."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.linear, self.sign = nn.Linear(8, 8), sign

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        chosen = y.round()
        if self.training and y.requires_grad:
            chosen = y + (chosen + self.sign * y).detach()  # which is chosen, if the sign is right
        return chosen


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_output_that_is_another_where_training_records_gradients_is_found(sign: float) -> None:
    findings = run_check(registry.load("FWD207"), embedding_subject(lambda: _Quantizes(sign))).findings
    assert [finding.message.partition(" at S=")[0] for finding in findings] == [
        "training mode gives another output with gradients than under no_grad"
    ] * (sign > 0)
    assert all("self.sign" in linecache.getline(each.where.file, each.where.line) for each in findings)


class _Drops(nn.Module):
    """Something that is drawn in training, where gradients are recorded or in another way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way, self.own = nn.Linear(8, 8), way, torch.Generator()
        self.own.seed()

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if not self.training:
            return y
        if self.way == "a generator of its own":
            return y * (torch.rand(y.shape[1:], generator=self.own) > 0.3)
        if self.way == "with gradients alone":
            return nn.functional.dropout(y, 0.2, torch.is_grad_enabled())
        parts = y.split(16, 1) if torch.is_grad_enabled() else [y]
        return torch.cat([nn.functional.dropout(part, 0.2) for part in parts], 1)


class _SetUp(nn.Module):
    """A scale that the first call of training sets up by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training and torch.is_grad_enabled() and not self.scale:
            self.scale = float(y.detach().std())
        return y / (self.scale or 1.0) if self.training else y / self.scale if self.scale else y


@pytest.mark.parametrize(
    "make",
    [
        lambda: _Drops("a generator of its own"),
        lambda: _Drops("with gradients alone"),
        lambda: _Drops("in pieces"),
        _SetUp,
    ],
    ids=["own generator", "with gradients", "in pieces", "set up by data"],
)
def test_what_is_drawn_or_set_up_where_gradients_are_recorded_is_no_other_output(make: Callable[[], nn.Module]) -> None:
    findings = run_check(registry.load("FWD207"), embedding_subject(make)).findings
    assert not any("with gradients than under no_grad" in finding.message for finding in findings)


class _OverTokens(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


class _ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x.mT, self.running_mean, self.running_var, training=self.training).mT


@pytest.mark.parametrize("kind", [lambda: _OverTokens(8), _ByHand], ids=["a subclass", "by hand"])
def test_a_batch_norm_of_ones_own_depends_on_the_mode_rightly(kind: Callable[[], nn.Module]) -> None:
    make = lambda: nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 8))  # noqa: E731
    assert run_check(registry.load("FWD207"), embedding_subject(make)).findings == ()
