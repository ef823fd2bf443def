"""Gradients that are lost only in long inputs, and what else begins there; the line that loses one is marked."""

import torch
from torch import Tensor, nn

from .host import DIM, Host


class _Summary(nn.Module):
    """What lies 512 tokens back is read as a mean."""

    def __init__(self, after: int = 512) -> None:
        super().__init__()
        self.value, self.old, self.after = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), after

    def forward(self, x: Tensor) -> Tensor:
        y = self.value(x)
        if x.shape[1] > self.after:
            past = self.summary(x[:, : -self.after])
            y = torch.cat((y[:, : self.after], y[:, self.after :] + self.old(past)), 1)
        return y

    def summary(self, past: Tensor) -> Tensor:
        return past.cumsum(1) / torch.arange(1, past.shape[1] + 1).to(past)[:, None]


class _Detached(_Summary):
    def summary(self, past: Tensor) -> Tensor:
        return super().summary(past.detach())  # here


class _WithoutGradients(_Summary):
    def summary(self, past: Tensor) -> Tensor:
        with torch.no_grad():
            return past.cumsum(1) / 100  # here


class _Watched(_Summary):
    """Looks at the size of what it reads, which moves nothing."""

    def summary(self, past: Tensor) -> Tensor:
        past = super().summary(past)
        self.size = past.detach().abs().amax()
        return past


class _Stabilised(_Summary):
    """What is subtracted cancels: the largest exponent, as in a softmax."""

    def summary(self, past: Tensor) -> Tensor:
        largest = past.amax(-1, keepdim=True).detach()
        weights = (past - largest).exp()
        return weights / weights.sum(-1, keepdim=True)


detached = lambda: Host(_Detached())  # noqa: E731
without_gradients = lambda: Host(_WithoutGradients())  # noqa: E731
detached_beyond_1024 = lambda: Host(_Detached(after=1024))  # noqa: E731

summary = lambda: Host(_Summary())  # noqa: E731
watched = lambda: Host(_Watched())  # noqa: E731
stabilised = lambda: Host(_Stabilised())  # noqa: E731
