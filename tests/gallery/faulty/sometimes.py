"""One causal host whose values are not finite, or which raises, under one condition alone that no sweep varies."""

from itertools import count

import torch
from torch import Tensor, nn


class Host(nn.Module):
    """A causal average between two linear layers, [B, S, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(16, 16), nn.Linear(16, 16)
        self.calls = 0

    def mixed(self, x: Tensor) -> Tensor:
        h = self.read(x)
        return h.cumsum(1) / torch.arange(1, h.shape[1] + 1, device=h.device)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.write(self.mixed(x))


class NanInBatches(Host):
    """Divides by the difference of two rows of the mask, which a batch of one has not."""

    def mixed(self, x: Tensor) -> Tensor:
        h = super().mixed(x)
        return h / (1 - float(len(x) > 1)) if len(x) > 1 else h


class RaisesInBatches(Host):
    """Takes the batch for one row."""

    def mixed(self, x: Tensor) -> Tensor:
        h = super().mixed(x)
        if len(x) > 1:
            raise RuntimeError("shape of the cache is [1, ...]")
        return h


class NanOnTheThirdCall(Host):
    """Every third call of one module reads a scale that is zero."""

    def mixed(self, x: Tensor) -> Tensor:
        h = super().mixed(x)
        return h / 0.0 if self.calls % 3 == 0 else h


_CALLS = count(1)


class NanOutsideTheModule(Host):
    """Every fifth call in this process, whichever module makes it, reads a scale that is zero."""

    def mixed(self, x: Tensor) -> Tensor:
        h = super().mixed(x)
        return h / 0.0 if next(_CALLS) % 5 == 0 else h


class _Backward(torch.autograd.Function):
    """Passes on, and makes NaN of gradients of batches."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient / 0.0 if len(gradient) > 1 else gradient


class NanGradientInBatches(Host):
    """Its own backward divides by zero in batches."""

    def mixed(self, x: Tensor) -> Tensor:
        return _Backward.apply(super().mixed(x))


class Float32Alone(Host):
    """Its kernel, so to speak, is written for float32."""

    def mixed(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("not implemented for 'Double'")
        return super().mixed(x)


class _Once(torch.autograd.Function):
    """A gradient that has none itself."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        return h.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


class Refusing(Host):
    """Healthy: takes contiguous memory alone, and has no second derivatives."""

    def mixed(self, x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        return _Once.apply(super().mixed(x))
