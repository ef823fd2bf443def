"""An argument that another function in the same place uses may be left alone; one of what a part holds may not."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD238"), small_subject(make, width=DIM, max_length=64))


class Waves:
    def weight(self, x: Tensor, t: Tensor) -> Tensor:
        t = t.reshape(-1, 1, 1)
        return x * t.cos()


class Flat:
    def weight(self, x: Tensor, t: Tensor) -> Tensor:
        t = t.reshape(-1, 1, 1)
        return x


class Mixing(nn.Module):
    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        shown = shown.unsqueeze(-1)
        return (x * shown).cumsum(1)


class Pointwise(nn.Module):
    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        shown = shown.unsqueeze(-1)
        return x.tanh()


def by_slope(x: Tensor, t: Tensor, to: Tensor) -> Tensor:
    t, to = torch.as_tensor(t), torch.as_tensor(to)
    return x * (to - t)


def by_end(x: Tensor, t: Tensor, to: Tensor) -> Tensor:
    t, to = torch.as_tensor(t), torch.as_tensor(to)
    return x * to.cos()


STEPS = {"slope": by_slope, "end": by_end}


def in_blocks(x: Tensor, block: int, gain: float) -> Tensor:
    block = int(block)
    return torch.cat([each * gain for each in x.split(block, 1)], 1)


def at_once(x: Tensor, block: int, gain: float) -> Tensor:
    block = int(block)
    return x * gain


class Runs(nn.Module):
    """Calls one of the ways."""

    def __init__(self, way: Callable[["Runs", Tensor], Tensor]) -> None:
        super().__init__()
        self.way, self.mix = way, nn.Linear(DIM, DIM)
        self.blocks = nn.ModuleList([Mixing(), Pointwise()])

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.mix(x))

    def scaled(self, x: Tensor) -> Tensor:
        return in_blocks(x, 3, 2.0) if x.shape[1] > 1000 else at_once(x, 3, 2.0)

    def blocked(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, torch.ones_like(x[..., 0]))
        return x


HEALTHY: dict[str, Callable[[Runs, Tensor], Tensor]] = {
    "schedules": lambda runs, x: Waves().weight(x, torch.ones(1)) + Flat().weight(x, torch.ones(1)),
    "blocks": Runs.blocked,
    "table": lambda runs, x: STEPS["end"](x, torch.tensor(0.5), torch.tensor(0.4)),
    "fallback": Runs.scaled,
}


@pytest.mark.parametrize("way", HEALTHY.values(), ids=HEALTHY)
def test_what_another_in_its_place_uses_is_no_finding(way: Callable[[Runs, Tensor], Tensor]) -> None:
    assert examined(lambda: Runs(way)).findings == ()


class Attends(nn.Module):
    """Loses what its holders hand on."""

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        hidden = hidden[:, None]  # here
        return (x @ x.mT).softmax(-1) @ x


class Layer(nn.Module):
    """Is made of whatever it is given."""

    def __init__(self, attends: type[nn.Module]) -> None:
        super().__init__()
        self.attends, self.mix = attends(), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        y: Tensor = self.attends(self.mix(x), hidden)
        return y


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(Attends) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, torch.zeros(x.shape[:2]))
        return x


class Decays:
    def decay(self, x: Tensor, rate: Tensor) -> Tensor:
        rate = rate.exp()  # here
        return x


class ByDecay:
    """Hands it on."""

    def decay(self, x: Tensor, rate: Tensor) -> Tensor:
        return Decays().decay(x, rate)


def halved(x: Tensor, at: Tensor, by: Tensor) -> Tensor:
    at = at.float()  # here
    return x / (1 + by)


def doubled(x: Tensor, at: Tensor, by: Tensor) -> Tensor:
    return x * (1 + by) * at


FAULTY: dict[str, Callable[[], nn.Module]] = {
    "held": Layers,
    "handed on": lambda: Runs(lambda runs, x: ByDecay().decay(x, torch.ones(1))),
    "arguments": lambda: Runs(lambda runs, x: halved(doubled(x, torch.ones(1), torch.ones(1)), *torch.ones(2, 1))),
}


@pytest.mark.parametrize("make", FAULTY.values(), ids=FAULTY)
def test_what_its_holder_or_another_function_uses_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
