"""Logarithms of what rounds to zero (NAN109), and functions of scores that are given probabilities (FWD274)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Layer(nn.Module):
    """Scores of each token, which a forward of its own makes something of."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def scores(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x)


class LogOfSoftmax(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.scores(x).softmax(-1))  # here


class LogOfSoftplus(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(self.scores(x)).log()  # here


class LogOfPart(Layer):
    """Behind another layout, and a sum over a few classes."""

    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        return x + shares[..., :2].sum(-1).unsqueeze(-1).log2()  # here


class Clamped(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax(-1).clamp(min=1e-6).log()


class Beside(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.scores(x).sigmoid() + 1e-8)


class Bounded(Layer):
    """Cosines over a temperature lie between -14 and 14, whatever the weights."""

    def forward(self, x: Tensor) -> Tensor:
        cosines = functional.normalize(self.scores(x), dim=-1) @ functional.normalize(self.head.weight, dim=-1).T
        return torch.log((cosines / 0.07).softmax(-1))


class Capped(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log((10 * torch.tanh(self.scores(x) / 10)).sigmoid())


class Hidden(Layer):
    """What a mask hides has a share of zero on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        is_hidden = torch.arange(WIDTH) > WIDTH - 3
        shares = self.scores(x).masked_fill(is_hidden, -torch.inf).softmax(-1)
        return torch.log(shares).masked_fill(is_hidden, 0)


class Counted(Layer):
    """An entropy that is looked at, and not learned from."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        with torch.no_grad():
            shares = scores.softmax(-1)
            self.entropy = -(shares * shares.log()).sum(-1).mean()
        return scores


class Logged(Layer):
    """An entropy that is kept to be looked at, of what the answer is made of."""

    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        self.entropy = -(shares * shares.log()).sum(-1).mean()
        return x + shares


class Widths(Layer):
    """Widths of weights (Bayes by backprop) and a share of layers are made of parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rho, self.mix = nn.Parameter(torch.full((WIDTH,), -5.0)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        of_widths = functional.softplus(self.rho).log()
        return self.scores(x) + of_widths + self.mix.softmax(0).log().mean()


class Mixed(Layer):
    """A share of shares."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        return torch.log(scores[..., :1].sigmoid() * scores.softmax(-1))  # here


class HiddenBetween(Layer):
    """What a mask hides is hidden between two of them."""

    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        hidden = shares.masked_fill(torch.arange(WIDTH) > WIDTH - 3, -torch.inf)
        return hidden.softmax(-1)  # here


class TwoSoftmaxes(Layer):
    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        return nn.Softmax(dim=1)(shares.transpose(1, 2)).transpose(1, 2)  # here


class TwoSigmoids(Layer):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.scores(x).sigmoid()
        return x * torch.sigmoid(gate)  # here


class SoftplusOfShares(Layer):
    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        return functional.softplus(shares) + 1  # here


class OtherAxis(Layer):
    """Shares of the classes, then of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax(-1).softmax(1)


class Sharpened(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return (self.scores(x).softmax(-1) / 0.1).softmax(-1)


class Chosen(Layer):
    """Shares of the largest shares."""

    def forward(self, x: Tensor) -> Tensor:
        largest, where = self.scores(x).softmax(-1).topk(3, dim=-1)
        return x * torch.zeros_like(x).scatter(-1, where, largest.softmax(-1))


class OfGates(Layer):
    """Scores between bounds, on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).sigmoid().softmax(-1)


def logarithm_of_sigmoid(scores: Tensor) -> Tensor:
    return -torch.log(torch.sigmoid(scores[..., 0] - scores[..., 1])).mean()  # here


def by_hand(scores: Tensor) -> Tensor:
    chance, wanted = scores.sigmoid(), (torch.arange(WIDTH) % 2).to(scores)
    return -(wanted * (chance + 1e-7).log() + (1 - wanted) * torch.log(1 - chance)).mean()  # here


def in_one(scores: Tensor) -> Tensor:
    return -functional.logsigmoid(scores[..., 0] - scores[..., 1]).mean()


def examined(code: str, make: Callable[[], nn.Module], **given: object) -> Result:
    return run_check(registry.load(code), small_subject(make, width=WIDTH, max_length=80, **given))


def stepping(loss_of: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A training step on that loss."""

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module(x))
        loss.backward()
        optimizer.step()
        return loss

    return step


def is_found(result: Result) -> bool:
    (finding,) = result.findings
    return is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [LogOfSoftmax, LogOfSoftplus, LogOfPart, Mixed])
def test_a_logarithm_of_what_rounds_to_zero_is_found_at_its_line(make: type[nn.Module]) -> None:
    assert is_found(examined("NAN109", make))


@pytest.mark.parametrize("loss", [logarithm_of_sigmoid, by_hand])
def test_so_is_one_in_a_training_step(loss: Callable[[Tensor], Tensor]) -> None:
    result = examined("NAN109", Layer, train_step=stepping(loss))
    assert is_found(result)
    assert "in train_step" in result.findings[0].message
    assert "sigmoid" in result.findings[0].message


@pytest.mark.parametrize("make", [Clamped, Beside, Bounded, Capped, Hidden, Counted, Logged, Widths])
def test_one_that_never_comes_to_zero_is_silent(make: type[nn.Module]) -> None:
    result = examined("NAN109", make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_a_step_that_does_both_in_one_is_silent() -> None:
    assert examined("NAN109", Layer, train_step=stepping(in_one)).verdict is Verdict.PASS


@pytest.mark.parametrize("make", [TwoSoftmaxes, TwoSigmoids, SoftplusOfShares, HiddenBetween])
def test_what_is_squashed_twice_is_found_at_the_second(make: type[nn.Module]) -> None:
    assert is_found(examined("FWD274", make))


@pytest.mark.parametrize("make", [OtherAxis, Sharpened, Chosen, OfGates, LogOfSoftmax, Bounded])
def test_what_is_made_of_shares_otherwise_is_silent(make: type[nn.Module]) -> None:
    result = examined("FWD274", make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_weights_are_what_they_were_afterwards() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(LogOfSoftmax())
        return made[-1]

    examined("NAN109", make)
    largest = [float(each.head.weight.detach().abs().max()) for each in made]
    assert max(largest) < 1
