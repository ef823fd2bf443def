"""Writes in place that harm nothing, and other things that look like it."""

import numpy
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, softmax
from torch.utils.checkpoint import checkpoint

from .host import DIM, Host, hosting


def _relu_in_place(x: Tensor) -> Tensor:
    return torch.relu_(x + 1)


def _write_before_use(x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[:, ::2] = x[:, ::2]
    h += 1
    return h * h.sigmoid()


def _unsaved(x: Tensor) -> Tensor:
    total = x + 1
    total += x
    total -= 3
    return total


def _dropout_in_place(x: Tensor) -> Tensor:
    return dropout(x + 0, 0.3, training=True, inplace=True)


def _checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda h: softmax(h @ h.mT, -1) @ h, x, use_reentrant=False) + x


def _checkpointed_reentrant(x: Tensor) -> Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=True) + x


def _masked_in_place(x: Tensor) -> Tensor:
    scores = x @ x.mT
    scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return softmax(scores, -1) @ x


def _mask_written_early(x: Tensor) -> Tensor:
    mask = numpy.zeros((x.shape[1], x.shape[1]), dtype=bool)
    mask[numpy.triu_indices(x.shape[1], 1)] = True
    scores = (x @ x.mT).masked_fill(torch.from_numpy(mask), -1e9)
    return softmax(scores, -1) @ x


def _saved_but_unneeded(x: Tensor) -> Tensor:
    h = x * 2
    y = h.relu()
    h.data.abs_()
    return y


class _Cache(nn.Module):
    """Keeps keys and values of the last call in buffers, as decoding does."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = nn.Linear(DIM, 2 * DIM)
        self.register_buffer("cache", torch.zeros(1, 4096, 2 * DIM), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        kv = self.kv(x)
        with torch.no_grad():
            self.cache[:, : x.shape[1]] = kv
        k, v = kv.chunk(2, -1)
        return softmax(x @ k.mT, -1) @ v


class _Average(nn.Module):
    """A running average that no gradient reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(DIM))
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.average.lerp_(x.mean((0, 1)), 0.1)
        return self.norm(x.mT).mT


class _SpectralConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.spectral_norm(nn.Conv1d(DIM, DIM, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(nn.functional.pad(x.mT, (2, 0))).mT


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.9, DIM))

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = state * self.decay
            state += token
            outputs.append(state)
        return torch.stack(outputs, 1)


class _StraightThrough(nn.Module):
    """Rounds its weights through `.data` while it runs, before anything is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h + (h.round() - h).detach()


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,) = ctx.saved_tensors
        return gradient * ctx.scale, (gradient * x).sum()


def _kept_in_ctx(x: Tensor) -> Tensor:
    return _Kept.apply(x, torch.tensor(2.0))


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.clamp_(-1, 1)


def _own_gradient(x: Tensor) -> Tensor:
    return _Clipped.apply(x.tanh()).sin()


relu_in_place = hosting(_relu_in_place)
write_before_use = hosting(_write_before_use)
unsaved = hosting(_unsaved)
dropout_in_place = hosting(_dropout_in_place)
checkpointed = hosting(_checkpointed)
checkpointed_reentrant = hosting(_checkpointed_reentrant)
masked_in_place = hosting(_masked_in_place)
mask_written_early = hosting(_mask_written_early)
saved_but_unneeded = hosting(_saved_but_unneeded)
kept_in_ctx = hosting(_kept_in_ctx)
own_gradient = hosting(_own_gradient)
cache = lambda: Host(_Cache())  # noqa: E731
average = lambda: Host(_Average())  # noqa: E731
spectral_convolution = lambda: Host(_SpectralConvolution())  # noqa: E731
recurrent = lambda: Host(_Recurrent())  # noqa: E731
straight_through = lambda: Host(_StraightThrough())  # noqa: E731
