"""Layers that read a number from the device at every step are noted; one reading for all of them is not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH = 8


class Layer(nn.Module):
    """A running sum, which counts what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, state: Tensor, counts: dict[str, float] | None) -> tuple[Tensor, Tensor]:
        summed = self.map(x).cumsum(1) + state
        if counts is not None:
            counts["read"] = counts.get("read", 0.0) + (x != 0).any(-1).sum().item()  # here
        return summed, summed[:, -1:]


class Stack(nn.Module):
    def __init__(self, counts_everywhere: bool) -> None:
        super().__init__()
        self.layers, self.counts_everywhere = nn.ModuleList(Layer() for _ in range(3)), counts_everywhere

    def run(self, x: Tensor, states: list[Tensor], is_decoding: bool) -> tuple[Tensor, list[Tensor]]:
        found = []
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            counts: dict[str, float] | None = {} if is_decoding and (self.counts_everywhere or not number) else None
            x, state = layer(x, state, counts)
            found.append(state)
        return x, found

    def start(self, x: Tensor) -> list[Tensor]:
        return [x.new_zeros(len(x), 1, WIDTH) for _ in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.start(x), False)[0]


def examined(counts_everywhere: bool) -> Result:
    def step(module: Any, x: Tensor, states: list[Tensor]) -> Any:
        return module.run(x, states, True)

    subject = Subject(
        name="counts",
        build=lambda seed: (torch.manual_seed(seed), Stack(counts_everywhere))[1],
        forward=lambda module, x: module(x),
        prefill=lambda module, x: module.run(x, module.start(x), False),
        step=step,
        input="embeddings",
        width=WIDTH,
        max_length=128,
        packages=("tests",),
    )
    return run_check(registry.load("HNG201"), subject)


@pytest.mark.parametrize("counts_everywhere", [True, False])
def test_layers_that_wait_at_every_step_are_noted(counts_everywhere: bool) -> None:
    result = examined(counts_everywhere)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert [note.split(" (")[0] for note in result.notes] == [
        "the host waits for the device 3 times per token" for _ in range(counts_everywhere)
    ]
