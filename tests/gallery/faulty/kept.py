"""What modules keep from step to step, by content, by length, within bounds; the line that makes a leak is marked."""

from collections import OrderedDict, deque
from functools import lru_cache

import torch
from torch import Tensor, nn

from .host import DIM, Host


class _ByContent(nn.Module):
    """A table that finds what it has seen, and nothing else."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.linear, self.table, self.most = nn.Linear(DIM, DIM), OrderedDict(), most

    def forward(self, x: Tensor) -> Tensor:
        key = tuple(x.detach().sum(-1).flatten().tolist())
        if key not in self.table:
            self.table[key] = torch.softmax(x.detach(), -1)  # here
            if self.most is not None and len(self.table) > self.most:
                self.table.popitem(last=False)
        return self.linear(x) * self.table[key]


class _ByEveryChange(nn.Module):
    """Puts a mask aside whenever the length has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.masks, self.length = [], None

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.length:
            self.masks.append(torch.ones(x.shape[1], x.shape[1]).tril())  # here
            self.length = x.shape[1]
        mask = self.masks[-1]
        return mask @ x / mask.sum(-1, keepdim=True)


class _ByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.masks = {}

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length not in self.masks:
            self.masks[length] = torch.ones(length, length).tril()
        return self.masks[length] @ x / length


class _History(nn.Module):
    """Compares with the means of what came before."""

    def __init__(self, past) -> None:
        super().__init__()
        self.past = past

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(x.detach().mean((0, 1)))  # here
        return x + 0 * torch.stack(list(self.past)).mean(0)


class _Trimmed(nn.Module):
    """Drops the oldest past a number: `most`, or one far away that is written here."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.past, self.most = [], most

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(x.detach() * 1)
        if len(self.past) > (self.most or 50_000):
            self.past.pop(0)
        return x * 1


class _NeverTrimmed(nn.Module):
    """Means to drop the oldest, and takes out what is there no more."""

    def __init__(self) -> None:
        super().__init__()
        self.past, self.most = {}, 16

    def forward(self, x: Tensor) -> Tensor:
        self.past[len(self.past)] = x.detach() * 1  # here
        if len(self.past) > self.most:
            self.past.pop("oldest", None)
        return x * 1


@lru_cache(maxsize=5000)
def _scaled(value: float) -> Tensor:
    return torch.full((DIM,), value)


class _Cached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + _scaled(float(x.detach().sum()))


class _LastChosen(nn.Module):
    """Keeps which tokens were chosen last: other ones, and another number, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.chosen = nn.Linear(DIM, 1), None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x)[..., 0]
        self.chosen = scores.detach()[scores > 0]
        out = x * scores.sigmoid()[..., None]
        for _ in range(len(self.chosen)):
            out = out * 1
        return out


by_content = lambda: Host(_ByContent())  # noqa: E731
by_every_change = lambda: Host(_ByEveryChange())  # noqa: E731
history = lambda: Host(_History([]))  # noqa: E731
never_trimmed = lambda: Host(_NeverTrimmed())  # noqa: E731

by_content_of_late = lambda: Host(_ByContent(most=64))  # noqa: E731
by_length = lambda: Host(_ByLength())  # noqa: E731
long_history = lambda: Host(_History(deque(maxlen=1000)))  # noqa: E731
longer_history = lambda: Host(_History(deque(maxlen=100_000)))  # noqa: E731
trimmed = lambda: Host(_Trimmed(512))  # noqa: E731
trimmed_far_away = lambda: Host(_Trimmed(None))  # noqa: E731
cached = lambda: Host(_Cached())  # noqa: E731
last_chosen = lambda: Host(_LastChosen())  # noqa: E731
