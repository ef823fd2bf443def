"""Parts that keep, draw, grow or start something, and give equal calls equal results as far as they should."""

import os
import random
import time
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from .host import DIM, Host


class _Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.tanh(x))


class _BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT


class _MeanOfWhatWasSeen(nn.Module):
    """A running mean and a count in buffers, which move with every training pass and which the output shows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.mean = self.mean.lerp(x.detach().mean((0, 1)).to(self.mean), 0.1)
        return torch.tanh(x - self.mean)


class _GrownTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0, DIM), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < x.shape[1]:
            at = torch.arange(2 * x.shape[1], device=x.device)[:, None] / 10
            self.table = (at * torch.arange(1, DIM + 1)).cos()
        return x * self.table[: x.shape[1]].to(x.dtype)


@lru_cache(maxsize=4)
def _mask(length: int) -> Tensor:
    return torch.tril(torch.ones(length, length))


class _TableOfEachDtype(nn.Module):
    """Made again for another dtype than that of the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.dtype != x.dtype or self.table.shape[0] < x.shape[1]:
            self.table = torch.arange(x.shape[1], dtype=torch.float64).mul(0.1).cos()[:, None].to(x.dtype)
        return x * self.table[: x.shape[1]]


class _KeptMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = _mask(x.shape[1]).to(x)
        return (mask / mask.sum(-1, keepdim=True)) @ x


class _KeyValueCacheGiven(nn.Module):
    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        keys = x if past is None else torch.cat((past, x), 1)
        return x + keys.cumsum(1)[:, -x.shape[1] :] / 9


class _Codebook(nn.Module):
    """Entries that follow the values they stand for, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("entries", torch.linspace(-1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        nearest = (torch.tanh(x)[..., None] - self.entries).abs().argmin(-1)
        if self.training:
            with torch.no_grad():
                for index in range(len(self.entries)):
                    held = torch.tanh(x)[nearest == index]
                    if held.numel():
                        self.entries[index].lerp_(held.mean(), 0.01)
        return x + (self.entries[nearest] - x).detach()


class _StochasticDepth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.3:
            return x
        return x + torch.tanh(x) / (0.7 if self.training else 1.0)


class _GumbelGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x)
        weights = nn.functional.gumbel_softmax(scores) if self.training else scores.softmax(-1)
        return x * weights[..., :1] + torch.tanh(x) * weights[..., 1:]


class _FallingTemperature(nn.Module):
    """A count that only training reads."""

    step = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return torch.tanh(x)
        self.step += 1
        return torch.tanh(x / max(1.0, 2.0 - 0.05 * self.step))


class _RandomFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(DIM, DIM) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.features).relu()


class _OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.generator.random() < 0.3:
            return x
        return x + torch.tanh(x)


class _Counter(nn.Module):
    """Numbers for a log, which no output depends on."""

    calls, tokens, last = 0, 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.tokens, self.last = self.calls + 1, self.tokens + x.shape[1], x.detach().norm()
        return torch.tanh(x)


class _SpectralNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = spectral_norm(nn.Linear(DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class _WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = weight_norm(nn.Linear(DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class _Workspace(nn.Module):
    """Writes into memory that it keeps, and gives a view of it away."""

    def __init__(self) -> None:
        super().__init__()
        self.space = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return torch.tanh(x)
        if self.space.numel() < x.numel() or self.space.dtype != x.dtype:
            self.space = torch.empty(2 * x.numel(), dtype=x.dtype)
        return torch.tanh(x, out=self.space[: x.numel()].view(x.shape))


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.drop = nn.Linear(DIM, DIM), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.drop(self.mix(x))
        return checkpoint(lambda given: self.drop(self.mix(given)), x, use_reentrant=False)


class _MadeAtFirstCall(nn.Module):
    """A projection that is drawn when the width is first seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            self.weight = nn.Parameter(torch.randn(x.shape[-1], DIM, dtype=x.dtype) / 4)
        return x @ self.weight.to(x.dtype)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(DIM, DIM, batch_first=True, dropout=0.1, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class _KeepsDetachedLoss(nn.Module):
    """An auxiliary loss of the last call, kept for the training loop."""

    balance = None

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, 3)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        self.balance = weights.mean((0, 1)).square().sum()
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class _QuantisedRange(nn.Module):
    """A range of values that training widens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("highest", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.highest = torch.maximum(self.highest, x.detach().abs().max())
        return x + ((x / self.highest * 127).round() / 127 * self.highest - x).detach()


class _DrawsForNothing(nn.Module):
    """Noise that is drawn in any mode, and used in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        return torch.tanh(x + 0.1 * noise) if self.training else torch.tanh(x)


class _TimedAndNamed(nn.Module):
    """Its process and the time it takes go into a log, which no output depends on."""

    def forward(self, x: Tensor) -> Tensor:
        begin = time.perf_counter()
        y = torch.tanh(x)
        self.log = {"process": os.getpid(), "seconds": time.perf_counter() - begin, "at": time.time()}
        return y


class _SumOverSet(nn.Module):
    """Terms are added in the order of a set, which changes their rounding alone."""

    def forward(self, x: Tensor) -> Tensor:
        terms = {"a": x, "b": torch.tanh(x), "c": torch.sin(x), "d": x.square()}
        return sum((terms[name] for name in set(terms)), torch.zeros_like(x))


class _DrawnWithoutSeed(nn.Module):
    """Weights that no seed decides."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(DIM, DIM, generator=_unseeded()) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.mix


def _unseeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


NAMES = tuple(name[1:] for name, kind in list(globals().items()) if name.startswith("_") and isinstance(kind, type))


def __getattr__(name: str):
    """`now_and_then_healthy:NAME` is a host of that part."""
    if name in NAMES:
        return lambda: Host(globals()[f"_{name}"]())
    raise AttributeError(name)
