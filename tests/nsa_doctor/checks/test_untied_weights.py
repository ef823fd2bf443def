"""A method that ties weights and that no constructor calls is found, unless somebody else may call it."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.out(self.into(x).tanh())
        return output


class Calls(Base):
    """Its constructor ties."""

    def __init__(self) -> None:
        super().__init__()
        self.tie_weights()

    def tie_weights(self) -> None:
        self.out.weight = self.into.weight


class Forgets(Base):
    """Its constructor does not, as that of its neighbour does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def tie_weights(self) -> None:
        self.out.weight = self.into.weight


class Alone(Base):
    """Nobody has a method of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def share_embeddings(self) -> None:
        self.out.weight = self.into.weight


class IsAsked(Base):
    """Ties where it is told to, which it is not."""

    def __init__(self, is_tied: bool = False) -> None:
        super().__init__()
        self.is_tied = is_tied

    def tie_weights(self) -> None:
        if self.is_tied:
            self.out.weight = self.into.weight


class TiedByOthers(Base):
    """Whoever trains it ties it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def _share_parameters(self) -> None:
        self.out.weight = self.into.weight


class WantsAnother(Base):
    """Is given what to tie to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def tie_parameters(self, other: nn.Linear) -> None:
        self.out.weight = other.weight


class TiesInTheBase(Forgets):
    """Inherits the method, and calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.tie_weights()


def made() -> nn.Module:
    module = TiedByOthers()
    module._share_parameters()
    return module


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD227"), embedding_subject(make))


@pytest.mark.parametrize(("make", "why"), [(Forgets, "the constructor of Calls calls its own"), (Alone, "")])
def test_weights_that_are_meant_to_be_one_are_found(make: type[nn.Module], why: str) -> None:
    (finding,) = examined(make).findings
    assert "makes one of into.weight and out.weight" in finding.message
    assert finding.message.endswith(why or "they are two parameters")
    assert finding.where.file == __file__


@pytest.mark.parametrize("make", [Base, Calls, IsAsked, TiedByOthers, made, WantsAnother, TiesInTheBase])
def test_what_is_tied_or_may_be_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
