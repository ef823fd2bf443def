"""What is kept of weights that have changed since is found where it is kept; what follows them is passed over."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Scaled(nn.Module):
    """A layer whose output is scaled by the norm of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.kept, self.version = nn.Linear(DIM, DIM), None, -1

    def scale(self) -> Tensor:
        return self.mix.weight.norm()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) * self.scale()


class Stale(Scaled):
    def scale(self) -> Tensor:
        if self.kept is None:
            self.kept = self.mix.weight.detach().norm()
        return self.kept


class ByVersion(Scaled):
    """Keeps it as long as the weights are the same."""

    def scale(self) -> Tensor:
        if self.kept is None or self.version != self.mix.weight._version:
            self.kept, self.version = super().scale().detach(), self.mix.weight._version
        return self.kept


class Merged(Scaled):
    """Adds a second matrix to the first in eval(), and takes it away again in train()."""

    def __init__(self) -> None:
        super().__init__()
        self.added, self.is_merged = nn.Parameter(torch.randn(DIM, DIM)), False

    def train(self, mode: bool = True) -> "Merged":
        super().train(mode)
        with torch.no_grad():
            if mode is self.is_merged:
                self.mix.weight += -self.added if mode else self.added
                self.is_merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) if self.is_merged else self.mix(x) + x @ self.added.mT


class Spiking(Scaled):
    """Keeps a state of the last call's size, so that a state of another size is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.state = x.new_zeros(x.shape)
        for part in self.mix(x).unbind(1):
            self.state = self.state + part[:, None]
        return self.mix(x) * self.scale()


class StaleSpiking(Spiking, Stale):
    pass


def examined(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(name="kept", build=build, forward=forward, input="embeddings", width=DIM, packages=("tests",))
    return run_check(registry.load("FWD221"), subject)


@pytest.mark.parametrize("make", [Stale, StaleSpiking])
def test_what_is_kept_of_earlier_weights_is_found_where_it_is_kept(make: type[nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert linecache.getline(__file__, finding.where.line).strip() == "self.kept = self.mix.weight.detach().norm()"


@pytest.mark.parametrize("make", [Scaled, ByVersion, Merged, Spiking])
def test_what_follows_the_weights_is_passed_over(make: type[nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == ("PASS", ())
