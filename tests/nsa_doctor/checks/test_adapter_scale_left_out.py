"""The factor of an adapter that a path leaves out is found; one that is applied, or of what is not in use, is not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Adapter(nn.Module):
    """A linear layer and a low-rank update, which `merged` scales."""

    def __init__(self, alpha: float = 3.0, rank: int = 4) -> None:
        super().__init__()
        self.base, self.alpha, self.rank = nn.Linear(DIM, DIM), alpha, rank
        self.down, self.up = nn.Linear(DIM, rank, bias=False), nn.Linear(rank, DIM, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scaling = alpha / rank

    def merged(self) -> Tensor:
        return self.base.weight + self.up.weight @ self.down.weight * self.scaling

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class OfSeveral(Adapter):
    """Factors by the names of adapters, the rank by its root, alpha in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        del self.alpha, self.rank
        self.register_buffer("lora_alpha", torch.tensor(3.0))
        self.r, self.scaling = {"default": 4}, {"default": 1.5}


class Applied(Adapter):
    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scaling


class Merged(Adapter):
    """Its update is part of the weights already."""

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x)


class InTraining(Adapter):
    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * (self.scaling if self.training else 1.0)


class Guarded(Adapter):
    """Refuses another factor."""

    def forward(self, x: Tensor) -> Tensor:
        if self.scaling > 1:
            raise ValueError("no more than 1")
        return self.base(x) + self.up(self.down(x))


class WithoutLength(Applied):
    """Asking for its truth raises, as of a compiled list."""

    def __len__(self) -> int:
        raise TypeError("it has no length")


class OfNoAdapter(nn.Module):
    """A factor that another method reads, as guidance and denormalising do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.guidance_scale, self.dim = nn.Linear(DIM, DIM), 7.5, DIM

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


def checked(make: Any) -> Result:
    return run_check(registry.load("FWD241"), embedding_subject(make))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Adapter, "scaling=0.75, the alpha / rank of Adapter, has no effect"),
        (OfSeveral, "scaling['default']=1.5, the alpha / rank of OfSeveral, has no effect"),
        (
            lambda: nn.Sequential(Adapter(), Adapter(2.0)),
            "scaling=0.75, the alpha / rank of 0 (and 1 more of its class)",
        ),
    ],
)
def test_a_factor_that_is_left_out_is_found(make: Any, said: str) -> None:
    (found,) = checked(make).findings
    assert found.message.startswith(said)
    assert found.where.file == __file__


@pytest.mark.parametrize(
    "make", [Applied, Merged, InTraining, Guarded, WithoutLength, OfNoAdapter, lambda: Adapter(4.0)]
)
def test_a_factor_that_is_applied_or_of_what_is_not_in_use_is_silent(make: Any) -> None:
    assert checked(make).verdict in (Verdict.PASS, Verdict.SKIP)


def test_the_module_is_left_as_it_was() -> None:
    module = Adapter()
    checked(lambda: module)
    assert module.scaling == 0.75
