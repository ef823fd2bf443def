"""Parts that go wrong after a call in half precision, or by a rare draw."""

import random

import torch
from torch import Tensor, nn

from .host import DIM


class _Gain(nn.Module):
    """A healthy part: a gain for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain)


class _AfterHalfPrecision(_Gain):
    """Keeps what it made for the dtype of an earlier call."""

    table = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.table is None or self.table.dtype != torch.bfloat16:
            self.table = torch.linspace(0.3, 1.0, DIM, dtype=y.dtype)
        return y * self.table.to(y.dtype)  # here


_TABLES: dict[int, Tensor] = {}


class _TableOfTheProcess(_Gain):
    """Keeps a table for every length, in the dtype that was asked for first in the process."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.shape[1] not in _TABLES:
            _TABLES[x.shape[1]] = torch.linspace(0.3, 1.0, x.shape[1], dtype=y.dtype)[:, None]
        return y * _TABLES[x.shape[1]].to(y.dtype)


class _GradientByRareDraw(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if random.random() < 0.05:
            y = (y + y.detach()) / 2  # here
        return y


class _HalvesByDraw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2 if random.random() < 0.1 else gradients[0]  # here


class _GradientByDrawInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return _HalvesByDraw.apply(torch.tanh(x * self.gain))


class _FactorByRareDraw(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.1 if random.random() < 0.03 else y  # here
