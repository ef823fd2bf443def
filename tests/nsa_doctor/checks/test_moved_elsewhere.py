"""Parameters that the output does not need, and a loss or what a part returns beside its answer does, are a note."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Encoder(nn.Module):
    """States and the memory that the next segment reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.update = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = self.layer(x)
        return states, self.update(states[:, -1:])


class FirstAlone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)[0]


class WithinItself(nn.Module):
    """Makes an update that it gives to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.update = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        self.update(states)
        return states


class Masks(nn.Module):
    """A vector stands for what is hidden, and in an ordinary call nothing is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor, hides: Tensor | None = None) -> Tensor:
        hides = torch.zeros(x.shape[:2], dtype=torch.bool) if hides is None else hides
        return self.layer(torch.where(hides[..., None], self.hidden.to(x), x))


class PretrainedBy(Masks):
    def pretrain_loss(self, x: Tensor) -> Tensor:
        hides = torch.rand(x.shape[:2]) < 0.3
        return (self(x, hides) - x).square()[hides].mean()


class NeverHides(Masks):
    def pretrain_loss(self, x: Tensor) -> Tensor:
        return (self(x) - x).square().mean()


class Decides(nn.Module):
    """A tag for each token is read on the host, as a path of best tags is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = nn.Linear(DIM, DIM), nn.Parameter(torch.randn(DIM) * 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)
        tags = [[int(token.argmax()) for token in row] for row in (states.detach() + self.start).unbind()]
        return states + nn.functional.one_hot(torch.tensor(tags), DIM).to(states)


def test_what_decides_at_another_size_is_passed_over() -> None:
    result = run_check(registry.load("GRD201"), embedding_subject(Decides))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize(
    ("code", "make", "words"),
    [
        ("GRD201", FirstAlone, "a part of what forward returns (encoder[1]) that is not handed on"),
        ("GRD208", PretrainedBy, "the loss by pretrain_loss moves them"),
    ],
)
def test_what_is_needed_elsewhere_is_a_note(code: str, make: Callable[[], nn.Module], words: str) -> None:
    result = run_check(registry.load(code), embedding_subject(make))
    assert result.verdict is Verdict.PASS
    assert len(result.notes) == 1
    assert words in result.notes[0]


@pytest.mark.parametrize(("code", "make"), [("GRD201", WithinItself), ("GRD208", Masks), ("GRD208", NeverHides)])
def test_what_nothing_needs_is_found(code: str, make: Callable[[], nn.Module]) -> None:
    (finding,) = run_check(registry.load(code), embedding_subject(make)).findings
    assert "update" in finding.message or "hidden" in finding.message
