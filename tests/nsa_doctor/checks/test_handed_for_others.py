"""A part kept for others, or whose work is done otherwise, is no finding; of two in one line each is looked at."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import custom_op

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD268"), small_subject(make, width=DIM, max_length=64))


class Tags(nn.Module):
    """Gives logits."""

    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.kept_chance = activation  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class SaysSo(nn.Module):
    def __init__(self, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.kept_curve = activation  # callers apply it to what they are answered

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Acts(nn.Module):
    def __init__(
        self, dim: int, action_normalizer: Any = None, return_norm: Any = None, memory_pool: Any = None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.kept_normalizer = action_normalizer
        self.kept_norm = return_norm
        self.kept_pool = memory_pool

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Scaler:
    def __call__(self, x: Tensor) -> Tensor:
        return x / 2


class BatchNormalizer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Swished(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class ByChild(nn.Module):
    def __init__(self, dim: int, act: nn.Module) -> None:
        super().__init__()
        self.linear, self.swished = nn.Linear(dim, dim), Swished()
        self.curve_beside_child = act

    def forward(self, x: Tensor) -> Tensor:
        return self.swished(self.linear(x))


@custom_op("nsa_doctor_tests::bias_curve", mutates_args=())
def bias_curve(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


class ByKernel(nn.Module):
    def __init__(self, dim: int, act: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.curve_beside_kernel = act

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = bias_curve(x @ self.linear.weight.T, self.linear.bias)
        return y


class Gated(nn.Module):
    def __init__(self, dim: int, act: type[nn.Module] = nn.ReLU, gate_act: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.curve_of_two, self.curve_of_gate = act(), gate_act()  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.curve_of_two(self.up(x)) * self.gate(x)


class BothGated(nn.Module):
    def __init__(self, dim: int, act: type[nn.Module] = nn.ReLU, gate_act: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.first_applied, self.second_applied = act(), gate_act()

    def forward(self, x: Tensor) -> Tensor:
        return self.first_applied(self.up(x)) * self.second_applied(self.gate(x))


def made_sigmoid() -> nn.Module:
    return Tags(DIM, activation=nn.Sigmoid())


def made_log_softmax() -> nn.Module:
    return Tags(DIM, activation=nn.LogSoftmax(-1))


def made_says_so() -> nn.Module:
    return nn.Sequential(SaysSo(DIM, activation=nn.ReLU()))


def made_scaler() -> nn.Module:
    return Acts(DIM, action_normalizer=Scaler())


def made_module_of_others() -> nn.Module:
    return Acts(DIM, action_normalizer=BatchNormalizer())


def made_function() -> nn.Module:
    return Acts(DIM, return_norm=lambda x: x / 2)


def made_memory() -> nn.Module:
    return Acts(DIM, memory_pool=Scaler())


def made_child() -> nn.Module:
    return ByChild(DIM, act=nn.SiLU())


def made_kernel() -> nn.Module:
    return ByKernel(DIM, act=nn.GELU())


def made_both() -> nn.Module:
    return BothGated(DIM, act=nn.GELU, gate_act=nn.Tanh)


def made_within() -> nn.Module:
    return nn.Sequential(Tags(DIM, activation=nn.Sigmoid()))


def made_curve() -> nn.Module:
    return Tags(DIM, activation=nn.ReLU())


def made_two_in_a_line() -> nn.Module:
    return Gated(DIM, act=nn.GELU, gate_act=nn.Tanh)


def made_second_alone() -> nn.Module:
    return Gated(DIM, gate_act=nn.Tanh)


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": made_sigmoid,
    "log softmax": made_log_softmax,
    "says so": made_says_so,
    "scaler": made_scaler,
    "module of others": made_module_of_others,
    "function": made_function,
    "memory": made_memory,
    "child": made_child,
    "kernel": made_kernel,
    "both": made_both,
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_a_part_for_others_or_done_otherwise_is_no_finding(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "within": made_within,
    "curve": made_curve,
    "two in a line": made_two_in_a_line,
    "second alone": made_second_alone,
}


@pytest.mark.parametrize("make", FAULTY.values(), ids=FAULTY)
def test_one_that_is_left_out_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
