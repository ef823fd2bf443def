"""Parts that count their training passes in a buffer, and let what they count change their gradients."""

import torch
from torch import Tensor, nn

from .host import DIM, Host


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.training
        return self.counted(torch.tanh(x * self.gain))


class _HalfAtEveryNinth(_Counting):
    def counted(self, y: Tensor) -> Tensor:
        return (y + y.detach()) / 2 if self.training and int(self.count) % 9 == 0 else y  # here


class _LessEachTime(_Counting):
    def counted(self, y: Tensor) -> Tensor:
        share = 0.99 ** float(self.count)
        return share * y + (1 - share) * y.detach()  # here


half_at_every_ninth = lambda: Host(_HalfAtEveryNinth())  # noqa: E731
less_each_time = lambda: Host(_LessEachTime())  # noqa: E731
