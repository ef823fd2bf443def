"""A module that is named after a norm and does not normalise is found; norms of every usual kind are silent."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 32


class Norm(nn.Module):
    """The weights of a norm."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.full((DIM,), start)), nn.Parameter(torch.zeros(DIM))

    def mean_square(self, x: Tensor) -> Tensor:
        return x.square().mean(-1, keepdim=True)


class RMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(self.mean_square(x) + 1e-3) * self.weight


class ShiftedRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(self.mean_square(x) + 1e-6) * (1 + self.weight)


class LayerNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / (self.mean_square(x).sqrt() + 1e-5) * self.weight + self.bias


class ScaledRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1) * DIM**0.5 * self.weight


class L2Norm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


class L1LayerNorm(Norm):
    """By the mean of absolute values."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / centred.abs().mean(-1, keepdim=True)


class ComplexRMSNorm(Norm):
    """Of numbers whose real parts stand before the imaginary ones: their mean squared size is one."""

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = x.chunk(2, -1)
        scale = (real.square() + imaginary.square()).mean(-1, keepdim=True).rsqrt()
        return x * scale * self.weight


class LayerNormLinear(nn.Module):
    """A layer behind a norm, which is no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


class LayerNormMLP(Norm):
    """A layer that holds the weights of its norm itself, and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + nn.functional.layer_norm(x, (DIM,), self.weight, self.bias)


class SummingRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) * self.weight  # here


class VarianceLayerNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / (self.mean_square(x) + 1e-5) * self.weight + self.bias  # here


class IdleScaleNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight  # here


class DrawnLayerNorm(LayerNorm):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.weight, std=0.02)  # here


class OfTorch(nn.LayerNorm):
    def __init__(self) -> None:
        super().__init__(DIM)
        nn.init.normal_(self.weight, std=0.02)  # here


class DrawnShiftedRMSNorm(ShiftedRMSNorm):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.weight, std=0.02)


def _examined(norm: type[nn.Module], *args: float, is_trained: bool = False) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(DIM, DIM), norm(*args))
        for parameter in module[1].parameters() if is_trained else ():
            parameter.data.exponential_()
        return module

    subject = Subject(name="normed", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM)
    return run_check(registry.load("FWD246"), subject)


@pytest.mark.parametrize(
    ("norm", "start"),
    [
        *((kind, start) for kind in (RMSNorm, LayerNorm, ScaledRMSNorm) for start in (1.0, 0.25, 0.0)),
        *((ShiftedRMSNorm, start) for start in (0.0, 0.5)),
        (L2Norm, 1.0),
        (L1LayerNorm, 1.0),
        (ComplexRMSNorm, 1.0),
    ],
)
def test_norms_of_every_usual_kind_are_silent(norm: type[nn.Module], start: float) -> None:
    result = _examined(norm, start)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("norm", [DrawnLayerNorm, OfTorch])
def test_weights_that_are_drawn_about_zero_are_found_where_they_are_drawn(norm: type[nn.Module]) -> None:
    (finding,) = _examined(norm).findings
    assert "its weights begin on both sides of zero" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)


def test_weights_about_zero_that_are_added_to_one_are_silent() -> None:
    assert _examined(DrawnShiftedRMSNorm).verdict is Verdict.PASS


@pytest.mark.parametrize("norm", [RMSNorm, ShiftedRMSNorm, LayerNorm, ScaledRMSNorm])
def test_norms_whose_weights_were_trained_are_silent(norm: type[nn.Module]) -> None:
    result = _examined(norm, is_trained=True)
    assert result.verdict is Verdict.PASS, result.findings


@pytest.mark.parametrize("layer", [LayerNormLinear, LayerNormMLP])
def test_a_layer_that_holds_a_norm_is_not_one(layer: type[nn.Module]) -> None:
    assert _examined(layer).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (SummingRMSNorm, "the root of the mean square of its output is 0.177 (weights 1)"),
        (VarianceLayerNorm, "an input 8 times as large gives an output 0.125 times as large"),
        (IdleScaleNorm, "an input 8 times as large gives an output 8 times as large"),
    ],
)
def test_a_norm_that_does_not_normalise_is_found_at_its_line(norm: type[nn.Module], words: str) -> None:
    (finding,) = _examined(norm).findings
    assert finding.message == f"{norm.__name__} does not normalise: {words}"
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
