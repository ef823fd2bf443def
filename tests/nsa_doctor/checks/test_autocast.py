"""What autocast alone changes is found, and its roundings are not."""

from dataclasses import replace

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.imitated_autocast import autocast_pass, imitated_pass
from nsa_doctor.probes.numerics.rounded_pass import passed
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Mixer(nn.Module):
    """Causal attention of one head, with an effect that is made under autocast to that type alone."""

    def __init__(self, effect=lambda y: y, half=torch.bfloat16):
        super().__init__()
        self.qkv, self.out, self.effect, self.half = nn.Linear(8, 24), nn.Linear(8, 8), effect, half

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = self.out(scaled_dot_product_attention(q, k, v, is_causal=True))
        is_so = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == self.half
        return self.effect(y) if is_so else y


class Block(nn.Module):
    def __init__(self, effect, half=torch.bfloat16):
        super().__init__()
        self.mixer = Mixer(effect, half)

    def forward(self, x):
        return x + self.mixer(x)


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.mix = nn.Linear(8, 8), nn.Conv1d(8, 8, 3)

    def forward(self, x):
        return self.mix(nn.functional.pad(self.into(x).mT, (2, 0))).mT


class DecayedSums(nn.Module):
    """Sums of logarithms, a convolution and a linear map in turn: rounded as autocast does, sums and all."""

    def __init__(self):
        super().__init__()
        self.mix, self.gate, self.into = Convolution(), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.mix(x)
        sums = torch.sigmoid(self.gate(h)).log().cumsum(1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)[None, :, :, None]
        decay = (sums[:, :, None] - sums[:, None]).masked_fill(hidden, -1e4).exp()
        return torch.einsum("btsd,bsd->btd", decay, self.into(h))


class Scatters(nn.Linear):
    """Refuses two dtypes in one operation, as autocast gives it."""

    def forward(self, x):
        y = torch.zeros_like(x)
        y[:, ::2] = super().forward(x)[:, ::2]
        y.index_put_((torch.tensor([0]),), super().forward(x[:1]))
        return y


class ChoosesBlocks(nn.Linear):
    """A hard choice: the largest of the channels is kept."""

    def forward(self, x):
        y = super().forward(x)
        return y * (y == y.amax(-1, keepdim=True)) + x


def subject_of(make, seed: int = 0) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8, max_length=128)
    return replace(made, packages=("tests",), seed=seed)


def examined(make, seed: int = 0) -> Result:
    return run_check(registry.load("FWD213"), subject_of(make, seed))


def distances(y):
    """Of a type that no CPU measures them in."""
    with torch.autocast("cpu", enabled=False):
        return torch.cdist(y, y, p=1.0) @ y


def refuses(y):
    raise ValueError("not under autocast")


EFFECTS = {  # an effect, and the words of the finding
    "scale": (lambda y: 0.8 * y, "the output differs by"),
    "other rows": (lambda y: y[:1].expand_as(y), "the output differs by"),
    "nan": (lambda y: torch.cat((y[:, :-1], y[:, -1:] / 0), dim=1), "the output is not finite"),
    "doubled": (lambda y: 2 * y - y.detach(), "the gradient of mixer.out.bias differs by 1 of its size"),
    "detached": (lambda y: y.detach(), "the gradient of mixer.out.bias differs by 1 of its size"),
    "raises": (refuses, "raises ValueError: not under autocast"),
}


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", EFFECTS)
def test_what_autocast_alone_changes_is_found(name: str, half: str) -> None:
    effect, words = EFFECTS[name]
    result = examined(lambda: Block(effect, getattr(torch, half)))
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert words in finding.message
    assert f"under autocast to {half}" in finding.message
    assert finding.where.module in ("mixer", "")
    assert finding.where.module == "mixer" or name in ("doubled", "detached", "raises")


HEALTHY = {
    "attention": lambda: Block(lambda y: y),
    "no kernel": lambda: Block(distances),
    "lstm": lambda: Recurrent(8, 8, batch_first=True),
    "convolution": Convolution,
    "sums": DecayedSums,
    "choice": lambda: ChoosesBlocks(8, 8),
    "norm": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_roundings_of_autocast_are_no_finding(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_model_that_is_not_made_for_autocast_is_no_finding() -> None:
    result = examined(lambda: Scatters(8, 8))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "the subject raises RuntimeError" in str(result.notes)


def test_what_no_half_precision_serves_is_found_where_the_module_asks_for_it() -> None:
    def asks_numpy(y):
        return y.clamp(min=float(numpy.finfo(torch.zeros((), dtype=y.dtype).numpy().dtype).min))

    class Asks(Block):
        def forward(self, x):
            return asks_numpy(super().forward(x).to(self.mixer.out(x).dtype))

    (finding,) = examined(lambda: Asks(lambda y: y)).findings
    assert "under autocast to bfloat16 the subject raises TypeError" in finding.message


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [Mixer, DecayedSums])
def test_the_imitation_rounds_as_autocast_does(make, half: torch.dtype) -> None:
    sp = built(subject_of(make))
    x = sp.input(33, 2)
    plain, imitated, real = (passed(sp, x), imitated_pass(sp, x, half), autocast_pass(sp, x, half))
    for name, gradient in plain.gradients.items():
        error = float((imitated.gradients[name] - real.gradients[name]).norm())
        assert error <= 2 * float((imitated.gradients[name] - gradient).norm()) + 1e-3 * float(gradient.norm())
    moved = float((imitated.output - plain.output).norm())
    assert moved > 0
    assert float((imitated.output - real.output).norm()) < 2 * moved


def test_a_layer_that_no_cpu_has_in_float16_is_no_finding() -> None:
    result = examined(lambda: Recurrent(8, 8, batch_first=True))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
