"""Training that differs from evaluation is a note where the documentation says that it is meant to (FWD207)."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Bound(nn.Module):
    """A layer whose values are bound in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.training else x.clamp(-0.1, 0.1)  # here


class OnPurpose(Bound):
    """Training and evaluation differ on purpose.

    While it learns the values are free; what is served is bound.
    """


class Deliberately(Bound):
    """A layer. Its values are not bound in training, deliberately:
    the bound comes in with inference alone."""


class OfAWhole(nn.Module):
    """By design training leaves values free that evaluation binds."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Bound()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.part(x))


class OfAnotherPart(nn.Module):
    """A whole of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.other = Bound(), OnPurpose()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.part(x)) + 0 * self.other.layer(x)


class OnlyOfTraining(Bound):
    """A layer that is intended for training. It has a bound.

    Evaluation is as fast.
    """


def examined(make: type[nn.Module]) -> Result:
    return run_check(registry.load("FWD207"), small_subject(make, width=WIDTH, max_length=64))


@pytest.mark.parametrize("make", [OnPurpose, Deliberately])
def test_what_is_said_to_be_meant_is_a_note(make: type[nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.notes[0].startswith("training mode gives another output than eval()")
    assert "as its documentation says it is meant to" in result.notes[0]


def test_what_is_said_of_a_whole_holds_of_its_parts() -> None:
    assert examined(OfAWhole).verdict is Verdict.PASS


@pytest.mark.parametrize("make", [Bound, OfAnotherPart, OnlyOfTraining])
def test_what_is_said_of_something_else_excuses_nothing(make: type[nn.Module]) -> None:
    assert examined(make).verdict is Verdict.FAIL
