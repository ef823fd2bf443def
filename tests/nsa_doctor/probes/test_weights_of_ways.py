"""Weights that decoding reads and one pass does not, and the other way round, are named."""

from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.probes.attention.weights_of_ways import read_in_one


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixer, self.out = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))

    def step(self, x: Tensor) -> Tensor:
        return self.out(self.mixer(self.norm(x)))


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[1](x)

    def step(self, x: Tensor) -> Tensor:
        return self.experts[1](x) + self.experts[2](x)


def test_what_one_pass_leaves_out_is_named_with_the_forward_that_does() -> None:
    root, x = nn.Sequential(Part()), torch.randn(2, 4)
    found = read_in_one(root, partial(root, x), lambda: root[0].step(x))
    assert found is not None
    assert found.text == "decoding alone reads 0.mixer, which one pass leaves out"
    assert found.place is not None
    assert (found.place.module, found.place.line) == ("0", Part.forward.__code__.co_firstlineno)


def test_what_decoding_leaves_out_has_no_place() -> None:
    root, x = Part(), torch.randn(2, 4)
    found = read_in_one(root, lambda: root.step(x), lambda: root(x))
    assert found is not None
    assert (found.text, found.place) == ("one pass alone reads mixer, which decoding leaves out", None)


def test_of_one_of_a_row_that_a_router_may_leave_out_nothing_is_said() -> None:
    root, x = Chosen(), torch.randn(2, 4)
    assert read_in_one(root, lambda: root(x), lambda: root.step(x)) is None


def test_the_same_weights_are_no_difference() -> None:
    root, x = Part(), torch.randn(2, 4)
    assert read_in_one(root, lambda: root(x), lambda: root(x[:1])) is None
