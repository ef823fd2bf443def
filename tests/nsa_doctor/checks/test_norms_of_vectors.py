"""Norms by an inner product of some channels, or by lengths of vectors, normalise; those that take sums do not."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

CHANNELS, SIZE = 6, 4


class EquiRMSNorm(nn.Module):
    """By an inner product of half the components, the mean over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        measure = x[..., ::2].square().sum(-1, keepdim=True).mean(-2, keepdim=True)
        return x * torch.rsqrt(measure + 1e-6) * self.weight[:, None]


class SignedRMSNorm(nn.Module):
    """By an inner product that has no part of one component, for each channel by itself."""

    def forward(self, x: Tensor) -> Tensor:
        measure = x[..., :-1].square().sum(-1, keepdim=True)
        return x * torch.rsqrt(measure + 1e-6)


class VectorRMSNorm(nn.Module):
    """The mean over channels of the squared lengths of vectors."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True).mean(-2, keepdim=True) + 1e-6)


class HeadsRMSNorm(nn.Module):
    """For each head by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class KindsLayerNorm(nn.Module):
    """Two numbers by their mean square, and one vector of two by its squared length."""

    def forward(self, x: Tensor) -> Tensor:
        scalars, vectors = x[..., :2], x[..., 2:]
        scalars = scalars * torch.rsqrt(scalars.square().mean(-1, keepdim=True) + 1e-6)
        return torch.cat([scalars, vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + 1e-6)], -1)


class SummingRMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)  # here


class SummingOverAllRMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum((-1, -2), keepdim=True) + 1e-6)  # here


class SummingGroupsRMSNorm(nn.Module):
    """Each half by itself."""

    def forward(self, x: Tensor) -> Tensor:
        halves = x.unflatten(-1, (2, -1))
        return (halves * torch.rsqrt(halves.square().sum(-1, keepdim=True) + 1e-6)).flatten(-2)  # here


class VectorsSummedRMSNorm(nn.Module):
    """The sum of lengths over channels, and a mean over components."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True).sum(-2, keepdim=True) + 1e-6)  # here


class IdleRMSNorm(nn.Module):
    """By one component, which it does not divide by."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + x[..., :1].square())  # here


class Host(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.map, self.norm = nn.Linear(CHANNELS * SIZE, CHANNELS * SIZE), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.map(x).unflatten(-1, (CHANNELS, SIZE))).flatten(-2)


def examined(norm: type[nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Host(norm())

    width = CHANNELS * SIZE
    subject = Subject(name="normed", build=build, forward=lambda module, x: module(x), input="embeddings", width=width)
    return run_check(registry.load("FWD246"), subject)


@pytest.mark.parametrize("norm", [EquiRMSNorm, SignedRMSNorm, VectorRMSNorm, HeadsRMSNorm, KindsLayerNorm])
def test_a_norm_by_a_measure_of_its_own_is_silent(norm: type[nn.Module]) -> None:
    result = examined(norm)
    assert result.verdict is Verdict.PASS, result.findings


SUMMING = (SummingRMSNorm, SummingOverAllRMSNorm, SummingGroupsRMSNorm, VectorsSummedRMSNorm, IdleRMSNorm)


@pytest.mark.parametrize("norm", SUMMING)
def test_a_sum_in_place_of_a_mean_is_found(norm: type[nn.Module]) -> None:
    (finding,) = examined(norm).findings
    assert "does not normalise" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
