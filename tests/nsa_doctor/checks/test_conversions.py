"""GRD110: gradients that only a model in bfloat16 has wrong; rounding, and terms that cancel, are no finding."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 16


class Mixer(nn.Module):
    """Attention of one head; keys have a bias, whose gradient is zero: it moves all scores of a row alike."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.qkv, self.out, self.cut = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), cut

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if x.dtype == torch.bfloat16 and self.cut == "values":
            v = v.detach()
        mixed = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        return self.out(_Halved.apply(mixed) if self.cut == "halved" else mixed)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient if gradient.dtype == torch.bfloat16 else gradient


class Model(nn.Module):
    def __init__(self, cut: str) -> None:
        super().__init__()
        self.before, self.mixer, self.after = nn.Linear(DIM, DIM), Mixer(cut), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.mixer(self.before(x)))


def examined(cut: str, seed: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Model(cut)

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="model", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",), seed=seed
    )
    return run_check(registry.load("GRD110"), subject)


@pytest.mark.parametrize("cut", ["values", "halved"])
def test_a_gradient_that_is_cut_in_bfloat16_is_found_in_its_module(cut: str) -> None:
    (finding,) = examined(cut).findings
    assert finding.where.module == "mixer"
    assert finding.where.file == __file__


@pytest.mark.parametrize("seed", range(5))
def test_what_rounding_does_is_no_finding(seed: int) -> None:
    assert examined("", seed).verdict is Verdict.PASS
