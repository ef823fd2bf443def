"""A gradient that some lengths change is found at one of them, and one of causal code is the same at all."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Mixer(nn.Module):
    """Causal attention of one head, whose gradient is half as large at some lengths."""

    def __init__(self, condition=lambda length: False):
        super().__init__()
        self.qkv, self.out, self.condition = nn.Linear(8, 24), nn.Linear(8, 8), condition

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = self.out(scaled_dot_product_attention(q, k, v, is_causal=True))
        return (y + y.detach()) / 2 if self.condition(x.shape[1]) else y


class RowsMixedFarAway(nn.Linear):
    """Beyond 2,048 tokens the backward gives each row the mean of all."""

    def forward(self, x):
        y = super().forward(x)
        mixed = y.mean(0) - y
        return y + mixed - mixed.detach() if x.shape[1] > 2048 else y


class Convolution(nn.Module):
    """A long convolution by a transform over all tokens, each of which is rounded by what the largest one loses."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 64) / 8)

    def forward(self, x):
        length = x.shape[1]
        kernel = pad(self.kernel, (0, max(0, length - 64)))[:, :length]
        size = 2 * length
        return torch.fft.irfft(torch.fft.rfft(x.mT, n=size) * torch.fft.rfft(kernel, n=size), n=size)[..., :length].mT


class Blocks(nn.Linear):
    """Tokens in blocks of 16, the last of which is padded."""

    def forward(self, x):
        length = x.shape[1]
        y = super().forward(pad(x, (0, 0, 0, -length % 16))).unflatten(1, (-1, 16)).cumsum(2)
        return y.flatten(1, 2)[:, :length]


class Running(nn.Linear):
    def forward(self, x):
        return super().forward(x).cumsum(1)


class Alternating(nn.Linear):
    """Gradients that are another from call to call are for other checks."""

    def forward(self, x):
        y = super().forward(x)
        return y.softmax(-1) + nn.functional.dropout(y, 0.5, self.training)


def examined(make, seed: int = 0, max_length: int = 512, longest: int = 0) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8)
    return run_check(
        registry.load("GRD109"), replace(made, packages=("tests",), seed=seed, max_length=max_length, longest=longest)
    )


class LosesLateTokens(Mixer):
    """Values of late tokens pass without a gradient where there are many tokens: the first ones never read them."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if x.shape[1] > 200:
            v = torch.cat((v[:, :64], v[:, 64:128].detach(), v[:, 128:]), dim=1)
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True))


def test_a_gradient_that_the_first_tokens_do_not_show_is_found() -> None:
    (finding,) = examined(LosesLateTokens).findings
    assert finding.evidence["length"] > 200
    assert "first in detach" in finding.message


def test_a_gradient_that_mixes_rows_beyond_the_longest_length_is_found() -> None:
    (finding,) = examined(lambda: RowsMixedFarAway(8, 8), max_length=2048, longest=4096).findings
    assert finding.evidence["length"] == 2093


class CutFarOut(Running):
    """A running sum through which no gradient comes from far away."""

    def forward(self, x):
        y = super().forward(x)
        return torch.cat((y[:, :64].detach(), y[:, 64:]), dim=1) if x.shape[1] > 5000 else y


def test_a_gradient_that_thousands_of_tokens_cut_is_found() -> None:
    (finding,) = examined(lambda: CutFarOut(8, 8), max_length=1024, longest=8237).findings
    assert finding.evidence["length"] == 8237
    assert "first in detach" in finding.message
    assert examined(lambda: Running(8, 8), max_length=1024, longest=8237).verdict is Verdict.PASS


CONDITIONS = {
    "one length": lambda length: length == 77,
    "a prime": lambda length: length == 199,
    "multiples of seven": lambda length: length % 7 == 0,
    "multiples of 64": lambda length: length % 64 == 0,
    "one past 64s": lambda length: length > 1 and length % 64 == 1,
    "a range": lambda length: 300 < length < 400,
    "one token": lambda length: length == 1,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_gradient_that_a_length_changes_is_found(name: str) -> None:
    (finding,) = examined(lambda: nn.Sequential(Mixer(CONDITIONS[name]))).findings
    assert CONDITIONS[name](finding.evidence["length"])
    assert finding.where.module == "0"
    assert "first in detach" in finding.message


@pytest.mark.parametrize("make", [Mixer, Convolution, lambda: Blocks(8, 8), lambda: Alternating(8, 8)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_of_causal_code_are_silent(make, seed: int) -> None:
    result = examined(make, seed, 300)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
