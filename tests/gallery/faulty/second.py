"""Modules with two faults, the first of which keeps every call in one mode, or at some lengths, from an answer."""

import torch
from torch import Tensor, nn

from .host import DIM, Host


class _RaisesInTraining(nn.Module):
    """The second fault shows in eval(): a call depends on the longest one before it."""

    longest = 0

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("no such kernel")
        self.longest = max(self.longest, x.shape[1])
        return x * self.gain * (x.shape[1] / self.longest)  # here


class _RaisesWhenLong(nn.Module):
    """The second fault: the gradient of one parameter is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 100:
            raise RuntimeError("no such kernel")
        return x * self.gain.detach()  # here


def raises_in_training() -> nn.Module:
    return Host(_RaisesInTraining())


def raises_when_long() -> nn.Module:
    return Host(_RaisesWhenLong())
