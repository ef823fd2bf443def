"""Terms of a loss that count twice (GRD235) or teach nothing (GRD236), and parameters that start flat (GRD237)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject
from tests.nsa_doctor.conftest import is_marked

DIM = 8


class Contrasted(nn.Module):
    """Vectors of tokens, whose mean is near to that of the row which belongs to them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log_scale = nn.Linear(DIM, DIM), nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.layer(x), dim=-1)

    def scores(self, first: Tensor, second: Tensor) -> Tensor:
        return self.log_scale.clamp(max=math.log(100)).exp() * first @ second.T

    def contrastive_loss(self, first: Tensor, second: Tensor) -> Tensor:
        scores, labels = self.scores(first, second), torch.arange(len(first))
        return (functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.T, labels)) / 2


class OneWay(Contrasted):
    def contrastive_loss(self, first: Tensor, second: Tensor) -> Tensor:
        scores, labels = self.scores(first, second), torch.arange(len(first))
        there = functional.cross_entropy(scores, labels)
        back = functional.cross_entropy(scores, labels)  # here
        return (there + back) / 2


class SmoothedToo(Contrasted):
    """The same scores and labels, weighed in another way."""

    def contrastive_loss(self, first: Tensor, second: Tensor) -> Tensor:
        scores, labels = self.scores(first, second), torch.arange(len(first))
        hard = functional.cross_entropy(scores, labels)
        return hard + functional.cross_entropy(scores, labels, label_smoothing=0.1)


class LooksBeside(Contrasted):
    """What it computes again is to be seen, and no part of the loss."""

    def contrastive_loss(self, first: Tensor, second: Tensor) -> Tensor:
        scores, labels = self.scores(first, second), torch.arange(len(first))
        self.seen = functional.cross_entropy(scores, labels).item()
        return functional.cross_entropy(scores, labels)


class NeverALogarithm(Contrasted):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1 / 0.07))  # here


class Leaky(Contrasted):
    """One that is read beside its clamp gets a gradient."""

    def scores(self, first: Tensor, second: Tensor) -> Tensor:
        return super().scores(first, second) + 0.01 * self.log_scale


class ReadBeside(Leaky, NeverALogarithm):
    pass


class ShutInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.share = nn.Parameter(torch.zeros(DIM))  # here

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share.relu() * self.layer(x)


class Tokens(nn.Module):
    """States of tokens, and what is near to them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.codes = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        return (states - x).square().mean() + 0.25 * self.beside(states, x)

    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        return (states - self.codes(x).detach()).square().mean()


class CommitsNothing(Tokens):
    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        return (self.codes(x) - states).detach().square().mean()  # here


class WithoutGradients(Tokens):
    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return states.square().mean()  # here


class Stacked(Tokens):
    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        balance = states.detach().mean((0, 1)).var()  # here
        return torch.stack([(states - x).square().mean(), balance]).sum()


class OfTargetsAlone(Tokens):
    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        return x.square().mean()


class DetachedAsAWhole(Tokens):
    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        distance = (states - x).square().mean()
        return (states - x).abs().mean() + (distance - (states - x).abs().mean()).detach()


class FromZero(Tokens):
    def beside(self, states: Tensor, x: Tensor) -> Tensor:
        return states.new_zeros(()) + torch.zeros_like(states).sum() + (states - x).abs().mean()


class SeenAlone(Tokens):
    def loss(self, x: Tensor) -> Tensor:
        loss = (self(x) - x).square().mean()
        self.seen = loss + self(x).detach().square().mean()
        return loss


class Weighed(Tokens):
    """The weight of what is near, a margin, and a level that the loss does not fall below."""

    beside_weight, margin, flood = 0.25, 0.1, 0.02

    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        loss = (states - x).square().mean() + self.beside(states, x) * self.beside_weight
        loss = (loss + self.margin).clamp(min=0)
        return (loss - self.flood).abs() + self.flood


class WeightAdded(Weighed):
    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        return (states - x).square().mean() + self.beside(states, x) + self.beside_weight  # here


class WeightAddedTo(Weighed):
    def loss(self, x: Tensor) -> Tensor:
        states, beside_weight = self(x), 0.5
        loss = (states - x).square().mean()
        loss += beside_weight  # here
        return loss + self.beside(states, x)


class OfADensity(Weighed):
    """Constants of a likelihood, and the least of a weight that is learned."""

    log_coeff, min_weight = 0.919, 0.1

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(()))

    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        weight = nn.functional.softplus(self.beta) + self.min_weight
        return 0.5 * (states - x).square().mean() + self.log_coeff + weight * self.beside(states, x) + 0.01 * weight


class WeightInASetting(Weighed):
    def loss(self, x: Tensor) -> Tensor:
        states, settings = self(x), {"aux_weight": 0.3}
        return (states - x).square().mean() + self.beside(states, x) + settings["aux_weight"]  # here


class WeightsSummed(Weighed):
    """The sum of weights divides."""

    def loss(self, x: Tensor) -> Tensor:
        states = self(x)
        weight = torch.ones(()) + self.beside_weight
        return ((states - x).square().mean() + self.beside(states, x) * self.beside_weight) / weight


def check(code: str, make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load(code), embedding_subject(make))


@pytest.mark.parametrize(
    ("code", "make", "words"),
    [
        ("GRD235", OneWay, "contrastive_loss(second) computes cross_entropy of the same values twice"),
        ("GRD236", CommitsNothing, "loss() adds a term of "),
        ("GRD236", WithoutGradients, "loss() adds a term of "),
        ("GRD236", Stacked, "loss() adds a term of "),
        ("GRD236", WeightAdded, "loss() adds self.beside_weight, the number 0.25"),
        ("GRD236", WeightInASetting, "loss() adds settings['aux_weight'], the number 0.3"),
        ("GRD236", WeightAddedTo, "loss() adds beside_weight, the number 0.5"),
        ("GRD237", NeverALogarithm, "1 parameter (log_scale) starts at 14.3, where clamp is flat"),
        ("GRD237", ShutInForward, "1 parameter (share) starts at 0, where relu is flat"),
    ],
)
def test_a_term_that_teaches_nothing_is_found_at_its_line(code: str, make: Callable[[], nn.Module], words: str) -> None:
    (finding,) = check(code, make).findings
    assert finding.message.startswith(words)
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(
    ("code", "make"),
    [
        *(("GRD235", make) for make in (Contrasted, SmoothedToo, LooksBeside, Tokens)),
        *(("GRD236", make) for make in (Tokens, OfTargetsAlone, DetachedAsAWhole, FromZero, SeenAlone, Contrasted)),
        *(("GRD236", make) for make in (Weighed, WeightsSummed, OfADensity)),
        *(("GRD237", make) for make in (Contrasted, ReadBeside, Tokens)),
    ],
)
def test_a_term_that_is_meant_is_left_alone(code: str, make: Callable[[], nn.Module]) -> None:
    result = check(code, make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
