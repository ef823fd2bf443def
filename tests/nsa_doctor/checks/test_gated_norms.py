"""Norms that are called with a gate or with what is added to the stream: those that normalise are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 16


class GatedRMSNorm(nn.Module):
    """Norms before the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.normed(x) * functional.silu(z)


class GateFirstRMSNorm(GatedRMSNorm):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.normed(x * functional.silu(z))


class GateBeforeRMSNorm(GatedRMSNorm):
    """Is given the gate first."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.normed(z) * functional.silu(x)


class AddingLayerNorm(GatedRMSNorm):
    """Norms the sum of the stream and a part's result."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return functional.layer_norm(x + z, (WIDTH,))


class TimesRMSNorm(GatedRMSNorm):
    """Multiplies by what it is to divide by."""

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class IdleRMSNorm(GatedRMSNorm):
    def normed(self, x: Tensor) -> Tensor:
        return x * self.weight


class Gated(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.layer, self.gate, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x), self.gate(x))


def examined(norm: type[nn.Module]) -> Result:
    make: Callable[[], nn.Module] = lambda: Gated(norm)  # noqa: E731
    return run_check(registry.load("FWD246"), small_subject(make, width=WIDTH))


@pytest.mark.parametrize(("norm", "times"), [(TimesRMSNorm, "64 times"), (IdleRMSNorm, "8 times")])
def test_a_gated_norm_that_does_not_normalise_is_found(norm: type[nn.Module], times: str) -> None:
    (finding,) = examined(norm).findings
    assert f"{norm.__name__} does not normalise: an input 8 times as large beside the same gate" in finding.message
    assert times in finding.message


@pytest.mark.parametrize("norm", [GatedRMSNorm, GateFirstRMSNorm, GateBeforeRMSNorm, AddingLayerNorm])
def test_every_way_to_gate_or_add_is_silent(norm: type[nn.Module]) -> None:
    assert examined(norm).verdict is Verdict.PASS
