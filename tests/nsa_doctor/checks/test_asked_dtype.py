"""An epsilon that is another in float64 is a note of FWD304; what strays whatever the dtype is a finding."""

import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Norm(nn.Module):
    """With a larger epsilon but for float32."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) * (var + eps).rsqrt() * self.gain


class ByDifference(Norm):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 300
        var = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
        return x * (var.clamp(min=0) + 1e-6).rsqrt() * self.gain


class Normed(nn.Module):
    def __init__(self, norm: type[nn.Module] = Norm) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x) * 0.1)


def test_an_epsilon_for_float32_is_a_note() -> None:
    result = run_check(registry.load("FWD304"), small_subject(Normed, width=WIDTH, max_length=200))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert any("asks for the dtype" in note for note in result.notes)


def test_what_cancels_is_found() -> None:
    subject = small_subject(lambda: Normed(ByDifference), width=WIDTH, max_length=200)
    assert run_check(registry.load("FWD304"), subject).findings
