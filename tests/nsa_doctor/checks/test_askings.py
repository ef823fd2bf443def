"""Gradients are the same however they are asked for, or the backward that makes the difference is named."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check


class Changed(torch.autograd.Function):
    """The identity, whose backward does something under a condition."""

    @staticmethod
    def forward(ctx, y, condition, effect):
        ctx.condition, ctx.effect = condition, effect
        return y.clone()

    @staticmethod
    def backward(ctx, grad):  # at fault
        return ctx.effect(grad) if ctx.condition(grad) else grad, None, None


class Mixer(nn.Module):
    def __init__(self, condition, effect):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.condition, self.effect = condition, effect

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x)))
        return Changed.apply(y, lambda grad: self.condition(self, grad), self.effect)


class Block(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x):
        return x + self.mixer(x)


def examined(make, dtype: str = "float32", seed: int = 0, code: str = "GRD107") -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=8, max_length=128)
    subject = replace(subject, dtype=dtype, seed=seed, packages=("tests",))
    return run_check(registry.load(code), subject)


CONDITIONS = {  # a condition, and the words of the finding
    "expanded": (lambda mixer, grad: 0 in grad.stride(), "expanded memory"),
    "transposed": (lambda mixer, grad: grad.stride(0) < grad.stride(1), "transposed memory"),
    "graph": (lambda mixer, grad: torch.is_grad_enabled(), "create_graph"),
    "frozen": (lambda mixer, grad: not mixer.first.weight.requires_grad, "another parameter frozen"),
    "training": (lambda mixer, grad: mixer.training, "training mode"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_backward_that_depends_on_the_asking_is_found(name: str) -> None:
    condition, words = CONDITIONS[name]
    result = examined(lambda: Block(Mixer(condition, lambda grad: grad / 2)))
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert words in finding.message
    assert finding.where.module == "mixer"
    assert finding.where.function == "backward"


def test_a_large_gradient_that_becomes_nan_is_found() -> None:
    result = examined(lambda: Block(Mixer(lambda mixer, grad: grad.abs().max() > 100, lambda grad: grad / 0 * 0)))
    assert "a cotangent 65536 times as large gives gradients that are not finite" in result.findings[0].message


def test_a_large_gradient_that_takes_another_way_is_found() -> None:
    result = examined(lambda: Block(Mixer(lambda mixer, grad: grad.abs().max() > 100, lambda grad: grad.flip(0))))
    (finding,) = result.findings
    assert finding.message.startswith("a cotangent 65536 times as large gives other gradients")
    assert finding.where.function == "backward"


@pytest.mark.parametrize(
    ("kind", "words"), [("expanded", "expanded memory handed to"), ("transposed", "transposed memory handed to")]
)
def test_memory_that_reaches_a_backward_within_a_model_is_laid_out_otherwise(kind: str, words: str) -> None:
    condition, _ = CONDITIONS[kind]
    makes = lambda: nn.Sequential(Mixer(condition, lambda grad: grad / 2), nn.Linear(8, 8), nn.Softmax(-1))  # noqa: E731
    (finding,) = examined(makes).findings
    assert words in finding.message
    assert finding.where.function == "backward"


def test_a_backward_that_cannot_take_strides_is_found() -> None:
    result = examined(lambda: Block(Mixer(lambda mixer, grad: True, lambda grad: grad.view(-1).view(grad.shape))))
    assert result.verdict is Verdict.FAIL
    assert "view size is not compatible" in result.findings[0].message


def test_a_backward_that_raises_where_a_graph_is_made_is_found_unless_it_refuses_second_derivatives() -> None:
    def raises(grad):
        raise RuntimeError("no slot is left")

    result = examined(lambda: Block(Mixer(lambda mixer, grad: torch.is_grad_enabled(), raises)))
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert "no slot is left" in finding.message
    assert "create_graph=True" in finding.message
    assert finding.where.function == "raises"


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class Sine(nn.Linear):
    def forward(self, x):
        return Once.apply(super().forward(x))


class NeverTwice(Once):
    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("second derivatives are not computed here")
        return grad * ctx.saved_tensors[0].cos()


class RefusesGraphs(nn.Linear):
    def forward(self, x):
        return NeverTwice.apply(super().forward(x))


class WritesOut(Once):
    @staticmethod
    def backward(ctx, grad):
        return torch.mul(grad, ctx.saved_tensors[0].cos(), out=torch.empty_like(grad))


class RefusedByTorch(nn.Linear):
    def forward(self, x):
        return WritesOut.apply(super().forward(x))


class Clipped(nn.Linear):
    """Its gradients are clipped on purpose."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda grad: grad.clamp(-3, 3))
        return y


class Cancels(nn.Linear):
    """Scores by two layers that hardly tell tokens apart: what a softmax hands back for them cancels."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.unit = nn.Sequential(nn.Linear(32, 64), nn.Sigmoid(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 1))

    def forward(self, x):
        y = super().forward(x)
        mean = y.mean(1, keepdim=True).expand_as(y)
        scores = self.unit(1e-4 * torch.cat((mean, y, mean - y, mean * y), -1))
        return (scores.mT.softmax(-1) @ x).expand_as(y)


class Reads(nn.Linear):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype) if self.weight.dtype == torch.float32 else super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sine(8, 8),
        lambda: RefusesGraphs(8, 8),
        lambda: RefusedByTorch(8, 8),
        lambda: Clipped(8, 8),
        lambda: Cancels(8, 8),
        lambda: Reads(8, 8),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8)),
        lambda: nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.LayerNorm(8)),
        lambda: nn.Linear(8, 8).bfloat16(),
        lambda: nn.Linear(8, 8).half(),
    ],
    ids=[
        "once differentiable",
        "no second derivatives",
        "written by out=",
        "clipped",
        "cancels",
        "float32",
        "dropout",
        "frozen part",
        "bfloat16",
        "float16",
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("code", ["GRD107", "GRD108"])
def test_a_healthy_model_is_silent(make, seed: int, code: str) -> None:
    dtype = str(next(make().parameters()).dtype)[6:]
    result = examined(make, dtype, seed, code)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class Merged(nn.Linear):
    """A layer that takes a copy of its weights for eval(), as an adapter does that merges them."""

    def __init__(self) -> None:
        super().__init__(8, 8, bias=False)

    def forward(self, x):
        return x @ (self.weight if self.training else self.weight.detach()).T


@pytest.mark.parametrize("code", ["GRD107", "GRD108"])
@pytest.mark.parametrize("make", [nn.Tanh, Merged])
def test_a_model_without_a_gradient_in_eval_has_nothing_to_ask_for(make, code: str) -> None:
    result = examined(make, code=code)
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())


class Sometimes(nn.Module):
    """A layer whose output is right, and whose gradient is half as large under a condition."""

    def __init__(self, condition):
        super().__init__()
        self.linear, self.condition = nn.Linear(8, 8), condition

    def forward(self, x):
        y = self.linear(x)
        if self.condition(x):
            y = (y + y.detach()) / 2  # at fault
        return y


DETERMINISTIC = torch.are_deterministic_algorithms_enabled()
CIRCUMSTANCES = {  # a condition of the forward pass, and the words of the finding
    "transposed": (lambda x: x.stride(0) < x.stride(1), "transposed input"),
    "strided": (lambda x: x.stride(-1) == 2, "strided input"),
    "offset": (lambda x: x.storage_offset() > 0, "offset input"),
    "expanded": (lambda x: x.stride(0) == 0, "expanded input"),
    "leaf": (lambda x: x.is_leaf and x.requires_grad, "a leaf as input"),
    "input": (lambda x: x.requires_grad, "an input that requires a gradient"),
    "anomaly": (lambda x: torch.is_anomaly_enabled(), "anomaly mode"),
    "deterministic": (lambda x: torch.are_deterministic_algorithms_enabled() is not DETERMINISTIC, "deterministic"),
    "default dtype": (lambda x: torch.get_default_dtype() == torch.float64, "float64 as torch's default dtype"),
    "thread": (lambda x: threading.current_thread() is not threading.main_thread(), "a thread of Python's"),
}


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_a_gradient_that_a_circumstance_changes_is_found_in_its_line(name: str) -> None:
    condition, words = CIRCUMSTANCES[name]
    (finding,) = examined(lambda: Block(Sometimes(condition)), code="GRD108").findings
    assert words in finding.message
    assert finding.where.module == "mixer"
    assert (
        Path(finding.where.file).read_text(encoding="utf-8").splitlines()[finding.where.line - 1].endswith("at fault")
    )


def test_a_backward_that_refuses_a_circumstance_is_found() -> None:
    def refuses(grad):
        raise ValueError("not so")

    mixer = lambda: Mixer(lambda mixer, grad: torch.is_anomaly_enabled(), refuses)  # noqa: E731
    assert "ValueError: not so" in examined(lambda: Block(mixer()), code="GRD108").findings[0].message


class TakesViews(nn.Linear):
    """Refuses, loudly, what is not contiguous."""

    def forward(self, x):
        return super().forward(x.view(-1, 8)).view(x.shape)


class CountsInFloat32(nn.Linear):
    """Positions of the default dtype: coarser in float32 than in float64, and neither is wrong."""

    def forward(self, x):
        angles = torch.arange(x.shape[1]) / 7.0
        return super().forward(x) * angles.cos()[:, None].to(x.dtype)


@pytest.mark.parametrize("make", [TakesViews, CountsInFloat32])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_loud_refusal_and_a_coarser_default_are_no_finding(make, seed: int) -> None:
    result = examined(lambda: make(8, 8), seed=seed, code="GRD108")
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class Twice(nn.Module):
    """One layer called on sequences of two lengths: its outputs' gradients are of two sizes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) + self.layer(x[:, :1])


def test_a_layer_called_twice_keeps_its_own_gradients():
    subject = Subject(
        name="twice", build=lambda seed: Twice(), forward=lambda module, x: module(x), input="embeddings", width=8
    )
    assert run_check(registry.load("GRD107"), subject).verdict is Verdict.PASS


@pytest.mark.parametrize("passes_in", ["training", "eval()"])
def test_a_choice_whose_gradient_is_estimated_in_training_alone_is_meant(passes_in: str) -> None:
    class Quantizes(nn.Module):
        """Whole numbers, behind which no gradient passes but by an estimate."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            chosen = (y * 2).round() / 2
            if self.training is (passes_in == "training"):
                chosen = chosen.detach() + (y - y.detach())
            return self.second(chosen)

    assert examined(Quantizes).verdict is (Verdict.PASS if passes_in == "training" else Verdict.FAIL)
