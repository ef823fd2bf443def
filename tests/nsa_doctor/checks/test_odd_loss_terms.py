"""Losses that look as if a term counted twice, taught nothing or started flat (GRD235, GRD236, GRD237), and do not."""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Net(nn.Module):
    """States of tokens, a teacher that begins as their copy, and a scale."""

    def __init__(self, scale: float = 0.0) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(DIM, DIM), nn.Parameter(torch.tensor(scale))
        self.teacher = copy.deepcopy(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def taught(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.teacher(x)


class Dice(Net):
    """What is wanted is cast to what is foretold, and stands in a denominator."""

    def loss(self, x: Tensor) -> Tensor:
        shares, wanted = self(x).sigmoid(), (x > 0).to(self(x))
        return 1 - 2 * (shares * wanted).sum() / (shares.sum() + wanted.sum())


class Moments(Net):
    """The distance between two means, of which one is a target."""

    def loss(self, x: Tensor) -> Tensor:
        return (self(x).mean() - self.taught(x).mean()).square()


class Divergence(Net):
    """Cross-entropy less the teacher's own entropy, which is a constant of what the other term reads."""

    def loss(self, x: Tensor) -> Tensor:
        shares = self.taught(x).softmax(-1)
        return -(shares * self(x).log_softmax(-1)).mean() + (shares * shares.log()).mean()


class Excess(Net):
    """What a reference has is taken off."""

    def loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean() - (self.taught(x) - x).square().mean()


class OtherValue(Net):
    """The value of one loss with the gradient of another."""

    def loss(self, x: Tensor) -> Tensor:
        surrogate, value = (self(x) - x).abs().mean(), (self(x) - x).square().mean()
        return surrogate + (value - surrogate).detach()


class Permutations(Net):
    """The best of all orders of three sources: each pair is in two of them."""

    def loss(self, x: Tensor) -> Tensor:
        out, wanted = self(x).unbind(-1)[:3], x.unbind(-1)[:3]
        orders = [
            sum(functional.mse_loss(one, wanted[at]) for one, at in zip(out, order, strict=True))
            for order in itertools.permutations(range(3))
        ]
        return torch.stack(orders).min()


class Kinds(Net):
    """A sum over kinds of tokens, some of which a batch does not have."""

    def loss(self, x: Tensor) -> Tensor:
        kind, out = x[..., 0] > 100, self(x)
        rare = functional.mse_loss(out[kind], x[kind], reduction="sum")
        rarer = functional.mse_loss(out[kind & kind], x[kind & kind], reduction="sum")
        return rare + rarer + functional.mse_loss(out, x)


class Focal(Net):
    """The entropy once more, as what weighs it."""

    def loss(self, x: Tensor) -> Tensor:
        scores, labels = self(x).flatten(0, 1), torch.arange(x[..., 0].numel()) % DIM
        share = torch.exp(-functional.cross_entropy(scores, labels))
        return (1 - share) ** 2 * functional.cross_entropy(scores, labels)


class TwoPasses(Net):
    """Both halves of one batch that holds each row twice, without dropout."""

    def loss(self, x: Tensor) -> Tensor:
        one, other = self(torch.cat((x, x))).chunk(2)
        return functional.mse_loss(one, x) + functional.mse_loss(other, x)


class AtTheEnd(Net):
    """A scale that starts where its clamp ends, to the last bit of float32."""

    def __init__(self) -> None:
        super().__init__(math.log(100))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale.clamp(max=math.log(100)).exp()


class Clipped(Net):
    """A bound that the inputs of this size do not come to."""

    def __init__(self) -> None:
        super().__init__(50.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.minimum(x, self.scale))


class Multiplier(Net):
    """A relu that is shut in the forward, whose parameter another loss moves."""

    def __init__(self) -> None:
        super().__init__(-1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1 + self.scale.relu())

    def dual_loss(self, x: Tensor) -> Tensor:
        return -self.scale * (self.layer(x).square().mean() - 1)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum()


class ReadUnseen(Multiplier):
    """A function of its own reads the parameter too."""

    def forward(self, x: Tensor) -> Tensor:
        return _Scaled.apply(self.layer(x) * (1 + self.scale.relu()), self.scale)

    def dual_loss(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("code", "make"),
    [
        *(("GRD235", make) for make in (Permutations, Kinds, Focal, TwoPasses)),
        *(("GRD236", make) for make in (Dice, Moments, Divergence, Excess, OtherValue)),
        *(("GRD237", make) for make in (AtTheEnd, Clipped, Multiplier, ReadUnseen)),
    ],
)
def test_what_is_meant_is_left_alone(code: str, make: Callable[[], nn.Module]) -> None:
    result = run_check(registry.load(code), embedding_subject(make))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class OneLine(Net):
    """Two calls on one line, of targets that are copied for each."""

    def loss(self, x: Tensor) -> Tensor:
        scores, labels = self(x).flatten(0, 1) / 0.07, torch.arange(x[..., 0].numel()) % DIM
        return functional.cross_entropy(scores, labels) + functional.cross_entropy(scores, labels.clone())


class Again(Net):
    """The same head is called again."""

    def loss(self, x: Tensor) -> Tensor:
        labels = torch.arange(x[..., 0].numel()) % DIM
        there = functional.cross_entropy(self(x).flatten(0, 1), labels)
        return there + functional.cross_entropy(self(x).flatten(0, 1), labels)


class PerRow(Net):
    """A number for each row, added before their mean."""

    def loss(self, x: Tensor) -> Tensor:
        beside = self(x).detach().square().mean((1, 2))
        return ((self(x) - x).square().mean((1, 2)) + beside).mean()


class Made(Net):
    def loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean() + torch.tensor([self(x).square().mean(), 1.0], dtype=x.dtype).sum()


class Exponential(Net):
    """The scale is clamped behind its exponential, and was never a logarithm."""

    def __init__(self) -> None:
        super().__init__(1 / 0.07)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale.to(x.dtype).exp().clamp(max=100)


@pytest.mark.parametrize(
    ("code", "make"),
    [("GRD235", OneLine), ("GRD235", Again), ("GRD236", PerRow), ("GRD236", Made), ("GRD237", Exponential)],
)
def test_what_is_at_fault_in_another_form_is_found(code: str, make: Callable[[], nn.Module]) -> None:
    (finding,) = run_check(registry.load(code), embedding_subject(make)).findings
    assert finding.where.file == __file__
    assert make is not Exponential or "starts at 14.3, where clamp is flat" in finding.message


def test_one_row_is_no_proof() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        rows = module(x).mean(1)
        scores, labels = rows @ x.mean(1).T, torch.arange(len(x))
        loss = functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.T, labels)
        loss.backward()
        optimizer.step()
        return loss

    result = run_check(registry.load("GRD235"), replace(embedding_subject(Net), train_step=step))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
