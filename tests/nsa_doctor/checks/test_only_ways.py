"""Stacks of layers in which one part is the only way from the input to the output are found, at the layer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.attention.only_ways import only_way
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / DIM**0.5).softmax(-1) @ v


class Layer(nn.Module):
    """Norm, attention and a feed-forward part, each with its residual or without."""

    def __init__(self, *, past_attention: bool = True, past_feed_forward: bool = True) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(DIM), Attention()
        self.feed_forward = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.past = past_attention, past_feed_forward

    def forward(self, x: Tensor) -> Tensor:
        x = self.past[0] * x + self.attend(self.norm(x))
        return self.past[1] * x + self.feed_forward(x)


class Stack(nn.Module):
    """Between two maps, which all goes through."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        for layer in self.layers:
            x = layer(x)
        return self.down(x)


class Lists(nn.Module):
    """Layers that are lists of parts, with residuals around each."""

    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        parts = (nn.ModuleList([Attention(), nn.Linear(DIM, DIM)]) for _ in range(3))
        self.layers, self.adds = nn.ModuleList(parts), adds

    def forward(self, x: Tensor) -> Tensor:
        for attend, mix in self.layers:
            x = self.adds * x + attend(x)
            x = x + mix(x)
        return x


class Heads(nn.Module):
    """Heads side by side, which are no layers of a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Sequential(Attention(), nn.Linear(DIM, DIM)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return sum((head(x) for head in self.heads), torch.zeros_like(x))


def stacked(make: Callable[[], nn.Module]) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(
        name="stack",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        packages=("tests",),
        profile="smoke",
    )


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD232"), stacked(make))


FAULTY = {
    "past attention": (lambda: Stack(lambda: Layer(past_attention=False)), "attend of layers.0"),
    "past the feed-forward part": (
        lambda: Stack(lambda: Layer(past_feed_forward=False)),
        "feed_forward of layers.0",
    ),
    "in lists": (lambda: Lists(adds=False), "0 of layers.0"),
}


@pytest.mark.parametrize(("make", "said"), FAULTY.values(), ids=FAULTY.keys())
def test_a_part_that_nothing_leads_past_is_found(make: Callable[[], nn.Module], said: str) -> None:
    (finding,) = examined(make).findings
    assert finding.message.startswith(f"all that the output knows of the input goes through {said}: ")
    assert (finding.where.module, finding.where.file) == ("layers.0", __file__)


HEALTHY = {
    "residuals": lambda: Stack(Layer),
    "residuals in lists": lambda: Lists(adds=True),
    "heads": Heads,
    "layers of torch": lambda: Stack(lambda: nn.TransformerEncoderLayer(DIM, 2, 16, 0.0, batch_first=True)),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_what_something_leads_past_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stack(lambda: Layer(past_attention=False), count=1),
        lambda: Stack(lambda: nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())),
        lambda: nn.LSTM(DIM, DIM, num_layers=2, batch_first=True),
    ],
    ids=["one layer", "no attention", "a recurrence"],
)
def test_what_repeats_no_layer_of_attention_is_left_alone(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.SKIP


def test_the_matrices_are_left_as_they_were() -> None:
    sp = comparable_module(stacked(lambda: Stack(lambda: Layer(past_attention=False))))
    before = {name: value.clone() for name, value in sp.module.state_dict().items()}
    assert only_way(sp, 24) is not None
    assert all(torch.equal(before[name], value) for name, value in sp.module.state_dict().items())
