"""Gradients that are cut on purpose are a note, where the source says so or a statistic of the input is cut alone."""

import linecache
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)


class Normalised(Layer):
    """A series is given its own mean and size back."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        size = x.var(1, keepdim=True, unbiased=False).add(1.0).sqrt().detach()
        return self.layer((x - mean) / size) * size + mean


class LastValue(Layer):
    def forward(self, x: Tensor) -> Tensor:
        last = x[:, -1:].detach()
        return self.layer(x - last) + last


class Coordinates(Layer):
    """Each token is weighed by how near the others stand to it, by their first value."""

    @staticmethod
    @torch.no_grad()
    def distances(at: Tensor) -> Tensor:
        return torch.cdist(at - at.mean(1, keepdim=True), at - at.mean(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        at = x[..., :1].detach()
        return (1 / (1 + self.distances(at))) @ self.layer(x)


class ByNumpy(Layer):
    def forward(self, x: Tensor) -> Tensor:
        # statistics of the series carry no gradient
        mean = torch.from_numpy(x.detach().numpy().mean(1, keepdims=True))
        return self.layer(x - mean)


class Remembers(Layer):
    """What is kept for later tokens carries no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        kept = self.layer(x).detach()
        return self.layer(x) + kept.cumsum(1)


class Commented(Layer):
    def forward(self, x: Tensor) -> Tensor:
        # stop-gradient: the gate follows what the layer says
        read = self.layer(x).detach()
        return self.layer(x) * self.gate(read).sigmoid()


class ReadsAlone(Layer):
    """The gate reads the states without passing gradient back into them."""

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        return states * self.gate(states.detach()).sigmoid()


class OfWeights(Layer):
    """A statistic, of what a layer made."""

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        return states - states.mean((1, 2), keepdim=True).detach()  # here


class OfTokens(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gate(x.detach()).sigmoid()  # here


class OfMoreThanCoordinates(Layer):
    def forward(self, x: Tensor) -> Tensor:
        at = x[..., :1].detach()
        with torch.no_grad():
            weights = self.layer(x - at).softmax(1)  # here
        return weights * self.gate(x)


class SaidOfAnother(Layer):
    """What is kept carries no gradient; the gate has one."""

    def forward(self, x: Tensor) -> Tensor:
        kept = self.layer(x).detach()
        return self.layer(x) + kept + Lost.apply(self.gate(x))  # here


class SaysAnother(Layer):
    """Activations are checkpointed, so that gradients do not vanish; supports gradient checkpointing."""

    def forward(self, x: Tensor) -> Tensor:
        kept = self.gate(x).detach()  # here
        return self.layer(x) * kept.sigmoid()


class OfAParameter(Layer):
    """The gradient of one parameter is cut."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gate.bias.detach()  # here


class Lost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 0.5  # here


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 0.1


@torch.jit.ignore
def step(x: Tensor) -> Tensor:
    return Step.apply(x)


@torch.jit.ignore
def lost(x: Tensor) -> Tensor:
    return Lost.apply(x)


def spikes(x: Tensor, weight: Tensor) -> Tensor:
    return step(x @ weight.t())


def loses(x: Tensor, weight: Tensor) -> Tensor:
    return lost(x @ weight.t())


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    hidden_spikes, hidden_loss = torch.jit.script(spikes), torch.jit.script(loses)


class Spikes(Layer):
    """What leads to its steps is compiled."""

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(hidden_spikes(x, self.layer.weight))


class LosesBehind(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.gate(hidden_loss(x, self.layer.weight))


def test_steps_behind_what_is_compiled_have_a_surrogate() -> None:
    result = run_check(registry.load("GRD101"), embedding_subject(Spikes))
    assert (result.findings, len(result.notes)) == ((), 1)
    assert "whose derivative is zero" in result.notes[0]


@pytest.mark.parametrize("make", [Normalised, LastValue, Coordinates, ByNumpy, Remembers, Commented, ReadsAlone])
def test_a_cut_that_is_meant_is_a_note(make: Callable[[], nn.Module]) -> None:
    result = run_check(registry.load("GRD101"), embedding_subject(make))
    assert (result.findings, len(result.notes)) == ((), 1)
    assert "its source says" in result.notes[0] or "statistic of the input" in result.notes[0]


@pytest.mark.parametrize(
    "make", [OfWeights, OfTokens, OfMoreThanCoordinates, OfAParameter, SaysAnother, SaidOfAnother, LosesBehind]
)
def test_any_other_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = run_check(registry.load("GRD101"), embedding_subject(make)).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding
