"""GRD208 where forward raises under autograd: what is computed and read by nothing is found, by values alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.gradients.dropped_values import dropped_values
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Inplace(nn.Module):
    """A map whose halves are views that are written to, which autograd refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(x)
        q, k = wide.chunk(2, -1)
        q *= 0.5
        k *= 2.0
        narrow: Tensor = self.narrow(wide.relu())
        return narrow


class Host(nn.Module):
    """A first map, which acts, and what a kind of it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Inplace()
        self.make()

    def make(self) -> None:
        """Its other parts."""
        self.layers = nn.ModuleList([Inplace(), Inplace()])


class WrongVariable(Host):
    """What goes into the layers is returned."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x)
        y = tokens
        for layer in self.layers:
            y = layer(y) + y  # last
        return tokens + x


class NotAssigned(Host):
    """The result of the norm is thrown away."""

    def make(self) -> None:
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        self.norm(y)  # last
        return y


class Overwritten(Host):
    """The second layer is given what the first one is."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.layers[0](x).tanh()  # last
        y = self.layers[1](x)
        return y + x


class Residual(Host):
    """Everything acts."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x) + x
        return x


class InTraining(Host):
    """A head that training alone reads, whatever computes it."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.first(x)
        head = self.layers[0](self.layers[1](x))
        return (x, head) if self.training else x


class Beside(Host):
    """A part that gives a memory, which this one does not hand on."""

    def make(self) -> None:
        self.memory = nn.LSTM(DIM, DIM, batch_first=True)
        self.back = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out, _ = self.memory(x)
        return self.back(x) + out


class Kept(Host):
    """What is kept for a loss, a number among it."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.kept = {"first": [self.layers[0](x)]}
        self.number = float(self.layers[1](x).sum())
        return x


class HandedOut(Host):
    """What is kept as arrays and as lists."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.array = self.layers[0](x).detach().numpy().copy()
        self.list = {"of": self.layers[1](x).tolist()}
        return x


class Choosing(Host):
    """Scores choose more keys than there are."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        scores = self.layers[0](self.layers[1](x)).sum(-1)
        chosen = scores.topk(min(512, x.shape[1]), -1).indices
        keep = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)
        return x.masked_fill(~keep[..., None], 0.0)


class TakenAway(Host):
    """A branch for what no row of these has."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        other = self.layers[0](self.layers[1](x))
        return torch.where(x.isfinite(), x, other)


class Uncalled(Host):
    """Of parts that no call reaches nothing is said here."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = self.first(x)
        if other is not None:
            x = x + self.layers[0](other)
        return x


class Gated(Host):
    """Gates that are shut as it starts."""

    def make(self) -> None:
        super().make()
        self.gate = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.gate * self.layers[0](self.layers[1](x))


class Unsteady(WrongVariable):
    """One that counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + self.calls


def subject_of(kind: Callable[[], nn.Module]) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return kind()

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        answer = module(x)
        found: Tensor = answer[0] if isinstance(answer, tuple) else answer
        return found

    return Subject(
        name="tests",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        max_length=64,
        packages=("tests",),
        modes=("no_grad",),
    )


def examined(kind: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD208"), subject_of(kind))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (WrongVariable, "8 parameters (layers.0.wide.weight, "),
        (NotAssigned, "2 parameters (norm.weight, norm.bias)"),
        (Overwritten, "4 parameters (layers.0.wide.weight, "),
    ],
)
def test_what_is_computed_and_read_by_nothing_is_found_where_the_last_of_it_is_made(
    kind: type[Host], names: str
) -> None:
    (finding,) = examined(kind).findings
    assert finding.message.startswith(names)
    assert "without effect on any output" in finding.message
    assert finding.where.file == __file__
    assert Path(__file__).read_text("utf-8").splitlines()[(finding.where.line or 0) - 1].endswith("# last")


HEALTHY = (Residual, InTraining, Beside, Kept, HandedOut, Choosing, TakenAway, Uncalled, Gated, Unsteady)


@pytest.mark.parametrize("kind", HEALTHY)
def test_what_acts_or_may_act_elsewhere_passes(kind: type[Host]) -> None:
    result = examined(kind)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_one_that_raises_in_training_mode_too_is_left_alone() -> None:
    class Refusing(WrongVariable):
        """Training needs more than its input."""

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise ValueError("targets are needed in training")
            return super().forward(x)

    assert dropped_values(subject_of(Refusing)) == []


def test_where_there_are_gradients_they_are_asked() -> None:
    subject = subject_of(lambda: nn.Linear(DIM, DIM))
    assert run_check(registry.load("GRD208"), replace(subject, modes=("train", "eval"))).verdict is Verdict.PASS
