"""Writes into what backward needs, over attention, convolution, recurrence and token models.

The line that writes is marked `# here`.
"""

import ctypes

import numpy
import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting

TOKENS = 11


class _Attention(nn.Module):
    """Causal attention; subclasses spoil one step."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = softmax(self.masked(q @ k.mT), -1)
        return self.out(self.mix(weights, v))

    def masked(self, scores: Tensor) -> Tensor:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, float("-inf"))

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


class _ScaledWeights(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        weights /= 2  # here
        return out


class _ScaledWeightsUnseen(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        weights.data /= 2  # here
        return out


class _DetachedWeights(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        weights.detach().mul_(0.5)  # here
        return out


class _NumpyMask(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        view = weights.detach().numpy()
        view[..., 0] = 0.5  # here
        return out


class _MemsetValues(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        ctypes.memset(v.data_ptr(), 0, v.element_size() * v.numel() // 2)  # here
        return out


@torch.library.custom_op("faulty_inplace::scale", mutates_args=())
def _scale(x: Tensor) -> Tensor:
    torch.from_numpy(x.detach().numpy()).mul_(0.5)
    return x.clone()


_scale.register_autograd(lambda ctx, gradient: gradient * 0.5)


class _LyingOperation(_Attention):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return out + _scale(weights).sum(-1, keepdim=True)  # here


class _RollingState(nn.Module):
    """A recurrence that keeps its state in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.9, DIM))

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state += token  # here
            outputs.append(torch.sin(state) * self.decay)
        return torch.stack(outputs, 1)


class _Buffer(nn.Module):
    """Writes each step's state into one tensor and reads it again: the parts share a version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.9, DIM))

    def forward(self, x: Tensor) -> Tensor:
        states = torch.zeros_like(x)
        state = x[:, 0]
        for index in range(x.shape[1]):
            states[:, index] = torch.tanh(state) * x[:, index]  # here
            state = states[:, index] * self.decay
        return states


class _PaddedConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 4)

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x.mT, (3, 0))
        out = self.conv(padded)
        padded.zero_()  # here
        return out.mT


class _Residual(nn.Module):
    """The saved tensor and the write are in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        h = x + 0
        branch = self.down(torch.relu(self.up(self.norm(h))))
        h += branch  # here
        return h


class _Rescaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.kept = x
        return x * x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.kept


def _kept_in_ctx(x: Tensor) -> Tensor:
    h = x * 1
    y = _Rescaled.apply(h)
    h.mul_(3)  # here
    return y


class _DecayedWeight(nn.Module):
    """Clips its own weight after using it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.linear.weight.data.clamp_(-0.1, 0.1)  # here
        return y


class _WrittenInBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate = x.sigmoid()
        out = gate * x
        if out.requires_grad:
            out.register_hook(lambda gradient: self.reset(gate))
        return out

    def reset(self, gate: Tensor) -> None:
        gate.data.zero_()  # here


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.mul_(0.1)  # here


def _shared_gradient(x: Tensor) -> Tensor:
    return x.sin() + _ScaledGradient.apply(x)


def _only_long(x: Tensor) -> Tensor:
    y = x.exp()
    if x.shape[1] > 100:
        y.data[:, 100:] *= 2  # here
    return y


class _TokenModel(nn.Module):
    """Ids to logits, the embedding's output normalised where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixer = nn.Embedding(TOKENS, DIM), nn.GRU(DIM, DIM, batch_first=True)
        self.head = nn.Linear(DIM, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        h, _ = self.mixer(self.embedding(ids))
        logits = self.head(h)
        h.data.sub_(h.data.mean(-1, keepdim=True))  # here
        return logits


class _FillsMask(_Attention):
    """Reuses the tensor of scores for the weights' gradient-free copy."""

    def masked(self, scores: Tensor) -> Tensor:
        scaled = torch.tanh(scores)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scaled.masked_fill_(hidden, -30.0)  # here


def _foreach(x: Tensor) -> Tensor:
    a, b = x.exp(), x.tanh()
    torch._foreach_mul_([a, b], 2.0)  # here
    return a + b


def _out_argument(x: Tensor) -> Tensor:
    a = x.sigmoid()
    with torch.no_grad():
        torch.add(a, 1.0, out=a)  # here
    return a


class _Schedule(nn.Module):
    """Takes the square of a table and then changes the table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        out = x * self.table
        numpy.multiply(self.table.numpy(), 2.0, out=self.table.numpy())  # here
        return out


scaled_weights = lambda: Host(_ScaledWeights())  # noqa: E731
scaled_weights_unseen = lambda: Host(_ScaledWeightsUnseen())  # noqa: E731
detached_weights = lambda: Host(_DetachedWeights())  # noqa: E731
numpy_mask = lambda: Host(_NumpyMask())  # noqa: E731
memset_values = lambda: Host(_MemsetValues())  # noqa: E731
lying_operation = lambda: Host(_LyingOperation())  # noqa: E731
rolling_state = lambda: Host(_RollingState())  # noqa: E731
buffer = lambda: Host(_Buffer())  # noqa: E731
padded_convolution = lambda: Host(_PaddedConvolution())  # noqa: E731
residual = lambda: Host(_Residual())  # noqa: E731
kept_in_ctx = hosting(_kept_in_ctx)
decayed_weight = lambda: Host(_DecayedWeight())  # noqa: E731
written_in_backward = lambda: Host(_WrittenInBackward())  # noqa: E731
shared_gradient = hosting(_shared_gradient)
only_long = hosting(_only_long)
token_model = _TokenModel
fills_mask = lambda: Host(_FillsMask())  # noqa: E731
foreach = hosting(_foreach)
out_argument = hosting(_out_argument)
schedule = lambda: Host(_Schedule())  # noqa: E731
