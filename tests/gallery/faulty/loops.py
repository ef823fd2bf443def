"""Modules that keep something from one call to the next; the line that stores it is marked where that is a bug."""

from functools import lru_cache
from types import SimpleNamespace

import torch
from torch import Tensor, nn

DIM = 8


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.decay = nn.Linear(DIM, DIM), nn.Parameter(torch.zeros(DIM))
        self.state = None

    def scan(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        share = self.decay.sigmoid()
        state = torch.zeros(len(x), DIM) if state is None else state
        outputs = []
        for token in self.value(x).unbind(1):
            state = share * state + (1 - share) * token
            outputs.append(state)
        return torch.stack(outputs, 1), state


class _Carries(_Mixer):
    def forward(self, x: Tensor) -> Tensor:
        y, self.state = self.scan(x, self.state if self.training else None)  # here
        return y


class _Detaches(_Mixer):
    def forward(self, x: Tensor) -> Tensor:
        y, state = self.scan(x, self.state if self.training else None)
        self.state = state.detach()
        return y


class _ReturnsIt(_Mixer):
    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.scan(x, state)


class _Deep(nn.Module):
    """Keeps what it joins before the next tokens in a dictionary of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.cache = nn.Linear(DIM, DIM), SimpleNamespace(kept={})

    def forward(self, x: Tensor) -> Tensor:
        key = self.key(x)
        before = self.cache.kept.get("last", torch.zeros_like(key[:, :1]))
        self.cache.kept["last"] = key[:, -1:]
        return key + torch.cat([before, key[:, :-1]], 1)


class _Silent(nn.Module):
    """What it keeps saves nothing for backward: nothing raises, and the first parameters' graph grows on."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.linear, self.moved = nn.Parameter(torch.ones(DIM)), nn.Linear(DIM, DIM), None

    def forward(self, x: Tensor) -> Tensor:
        if self.moved is None:
            self.moved = self.bias + 1  # here
        return self.linear(x) + self.moved


class _Averages(nn.Module):
    """Running statistics that nobody detaches: training writes them, eval() alone reads them."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training:
            self.mean.mul_(0.9).add_(y.square().mean((0, 1)), alpha=0.1)  # here
            return y
        return y * self.mean.rsqrt()


class _KeepsViews(nn.Module):
    """A view of a parameter follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM) / DIM)
        self.turned = self.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.turned


class _Looks(nn.Module):
    """Keeps its last output, with its graph, for whoever wants to look, and never reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(DIM, DIM), None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.linear(x)
        return self.last * 1


@lru_cache(maxsize=4)
def _table(length: int) -> Tensor:
    return torch.arange(length).float()[:, None].cos()


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * _table(x.shape[1])


class _Around(nn.Module):
    def __init__(self, mixer: type[nn.Module]) -> None:
        super().__init__()
        self.dim = DIM
        self.blocks = nn.ModuleList([nn.Linear(DIM, DIM), mixer()])

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks[1](self.blocks[0](x))
        return x + (y[0] if isinstance(y, tuple) else y)


class Bigrams(nn.Module):
    """Ids to logits of the next token; `late` holds the input back by that many tokens, as a start token would."""

    def __init__(self, late: int = 0) -> None:
        super().__init__()
        self.embedding, self.head, self.late = nn.Embedding(23, DIM), nn.Linear(DIM, 23), late
        self.dropout = nn.Dropout(0.2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = torch.cat([torch.zeros_like(x[:, : self.late]), x[:, : x.shape[1] - self.late]], 1)
        return self.head(self.dropout(x + x.cumsum(1).tanh()))


carries = lambda: _Around(_Carries)  # noqa: E731
deep = lambda: _Around(_Deep)  # noqa: E731
silent = lambda: _Around(_Silent)  # noqa: E731
averages = lambda: _Around(_Averages)  # noqa: E731
detaches = lambda: _Around(_Detaches)  # noqa: E731
returns_it = lambda: _Around(_ReturnsIt)  # noqa: E731
keeps_views = lambda: _Around(_KeepsViews)  # noqa: E731
looks = lambda: _Around(_Looks)  # noqa: E731
table = lambda: _Around(_Table)  # noqa: E731
