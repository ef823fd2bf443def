"""A factor that a path leaves out is found; one that is applied, or that attention has by itself, is not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 16


class Adapter(nn.Module):
    """A linear layer and a low-rank update, which `merged` scales."""

    def __init__(self, scaling: Any = 0.75, name: str = "scaling") -> None:
        super().__init__()
        self.base, self.down, self.up = (
            nn.Linear(DIM, DIM),
            nn.Linear(DIM, 2, bias=False),
            nn.Linear(2, DIM, bias=False),
        )
        nn.init.zeros_(self.up.weight)
        setattr(self, name, scaling)

    def merged(self) -> Tensor:
        return self.base.weight + self.up.weight @ self.down.weight * self.scaling

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class OfSeveral(Adapter):
    def __init__(self, scaling: float = 0.25) -> None:
        super().__init__({"default": scaling})

    def merged(self) -> Tensor:
        return self.base.weight + self.up.weight @ self.down.weight * self.scaling["default"]


class Applied(Adapter):
    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scaling


class Attends(nn.Module):
    """Scaled by what is its own default; `explain` shows the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.scale = nn.Linear(DIM, DIM), DIM**-0.5

    def explain(self, x: Tensor) -> Tensor:
        return x @ x.mT * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True))


class BackwardAlone(Adapter):
    """Scales what flows back."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return y * self.scaling + (y * (1 - self.scaling)).detach() + self.up(self.down(x))


class InTraining(Adapter):
    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * (self.scaling if self.training else 1.0)


class ForLongInputs(Adapter):
    """Applied by a factor that is one for short sequences."""

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        return self.base(x) * (1 + self.scaling * (positions // 4096))[:, None] + self.up(self.down(x))


class NobodyReads(Adapter):
    def merged(self) -> Tensor:
        return self.base.weight


class NotCalled(nn.Module):
    """Holds an adapter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.spare = nn.Linear(DIM, DIM), Adapter()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


def checked(make: Any) -> Result:
    subject = Subject(
        name="tests",
        build=lambda seed: make(),
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        packages=("tests",),
    )
    return run_check(registry.load("FWD241"), subject)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Adapter, "scaling=0.75"),
        (OfSeveral, "scaling['default']=0.25"),
        (lambda: nn.Sequential(Adapter(), Adapter(0.5)), "scaling=0.75 that 0 (and 1 more of its class) holds"),
    ],
)
def test_a_factor_that_is_left_out_is_found(make: Any, said: str) -> None:
    (found,) = checked(make).findings
    assert said in found.message
    assert found.message.endswith("it is read in merged")
    assert found.where.function == "forward" or found.where.file == __file__


@pytest.mark.parametrize(
    "make", [Applied, Attends, BackwardAlone, InTraining, ForLongInputs, NobodyReads, NotCalled, lambda: Adapter(1.0)]
)
def test_a_factor_that_is_applied_or_means_nothing_is_silent(make: Any) -> None:
    assert checked(make).verdict in (Verdict.PASS, Verdict.SKIP)


def test_the_module_is_left_as_it_was() -> None:
    module = Adapter()
    checked(lambda: module)
    assert module.scaling == 0.75
    assert torch.is_grad_enabled()
