"""Modules whose caches are reset, rightly and wrongly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, LAYERS, ROOM = 8, 2, 64


class Attention(nn.Module):
    """One head; a cache says which keys and values there are, and which of them each query sees."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if cache is None:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        else:
            k, v, seen = cache.add(self.index, k, v)
        scores = (q @ k.mT / DIM**0.5).masked_fill(~seen, torch.finfo(x.dtype).min)
        return x + scores.softmax(-1) @ v


class Model(nn.Module):
    """Learned positions, which a cache counts."""

    def __init__(self, kind: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.kind = kind or Grown
        self.places = nn.Parameter(torch.randn(256, DIM))
        self.layers = nn.ModuleList(Attention(index) for index in range(LAYERS))

    def make_cache(self) -> Any:
        return self.kind()

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        x = x + self.places[torch.arange(x.shape[1])] if cache is None else x + self.places[cache.positions(x)]
        for layer in self.layers:
            x = layer(x, cache)
        return x


def lower(rows: int, columns: int) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


class Grown:
    """Keys and values that grow."""

    def __init__(self) -> None:
        self.keys: list[Any] = [None] * LAYERS
        self.values: list[Any] = [None] * LAYERS
        self.seen = 0

    def positions(self, x: Tensor) -> Tensor:
        self.seen += x.shape[1]
        return torch.arange(self.seen - x.shape[1], self.seen)

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.keys[layer] is not None:
            k, v = torch.cat((self.keys[layer], k), 1), torch.cat((self.values[layer], v), 1)
        length = k.shape[1] - (0 if self.keys[layer] is None else self.keys[layer].shape[1])
        self.keys[layer], self.values[layer] = k, v
        return k, v, lower(length, k.shape[1])

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


class KeepsCount(Grown):
    def reset(self) -> None:
        self.keys, self.values = [None] * LAYERS, [None] * LAYERS


class KeepsKeys(Grown):
    def reset(self) -> None:
        self.seen = 0


class KeepsALayer(Grown):
    def reset(self) -> None:
        self.keys[0] = self.values[0] = None
        self.seen = 0


class ZeroesWhatItSees(Grown):
    """Keys of zeros are attended to like any."""

    def reset(self) -> None:
        self.keys, self.values = (
            [torch.zeros_like(each) for each in held if each is not None] or [None] * LAYERS
            for held in (self.keys, self.values)
        )
        self.seen = 0


class Room(Grown):
    """Buffers that are written in place, of which the first `seen` are read: what lies behind may be anything."""

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = (k.new_zeros(len(k), ROOM, DIM) for _ in range(2))
        start = self.seen - k.shape[1]
        self.keys[layer][:, start : self.seen], self.values[layer][:, start : self.seen] = k, v
        seen = torch.arange(ROOM) <= torch.arange(start, self.seen)[:, None]
        return self.keys[layer], self.values[layer], seen

    def reset(self) -> None:
        self.seen = 0


class ZeroesRoom(Room):
    """Contents go, and the count stays."""

    def reset(self) -> None:
        for each in (*self.keys, *self.values):
            if each is not None:
                each.zero_()


class Ring(Grown):
    """The last keys in a ring, in which `filled` says how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.filled = [0] * LAYERS
        self.next = [0] * LAYERS

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = (k.new_zeros(len(k), ROOM, DIM) for _ in range(2))
        for token in range(k.shape[1]):
            self.keys[layer][:, self.next[layer]], self.values[layer][:, self.next[layer]] = k[:, token], v[:, token]
            self.next[layer] = (self.next[layer] + 1) % ROOM
            self.filled[layer] = min(self.filled[layer] + 1, ROOM)
        last = torch.arange(ROOM) < self.filled[layer]
        ages = (self.next[layer] - 1 - torch.arange(ROOM)) % ROOM
        return self.keys[layer], self.values[layer], last & (ages >= torch.arange(k.shape[1]).flip(0)[:, None])

    def reset(self) -> None:
        self.seen, self.next, self.filled = 0, [0] * LAYERS, [0] * LAYERS


class KeepsFilled(Ring):
    def reset(self) -> None:
        self.seen, self.next = 0, [0] * LAYERS


class ReturnsANew(Grown):
    def reset(self) -> "ReturnsANew":
        return type(self)()


class Clears(Grown):
    """By another name, and it says how much there was; its statistics and its tables stay."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.table = torch.arange(ROOM) / ROOM

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls += 1
        return super().add(layer, k, v)

    reset = None  # type: ignore[assignment]

    def clear_cache(self) -> int:
        count, self.seen = self.seen, 0
        self.keys, self.values = [None] * LAYERS, [None] * LAYERS
        return count


class AnotherModels(Model):
    def reset_cache(self, cache: Any) -> None:
        cache.keys, cache.values, cache.seen = [None] * LAYERS, [None] * LAYERS, 0


class NoReset(Grown):
    reset = None  # type: ignore[assignment]


class KeepsItsCount(AnotherModels):
    def reset_cache(self, cache: Any) -> None:
        cache.keys, cache.values = [None] * LAYERS, [None] * LAYERS


class Held(Model):
    """Its cache hangs on the module too, whose method resets it."""

    whole = True

    def make_cache(self) -> Any:
        self.held = NoReset()
        return self.held

    def reset(self) -> None:
        self.held.keys, self.held.values = [None] * LAYERS, [None] * LAYERS
        self.held.seen = 0 if self.whole else self.held.seen


class HeldByHalf(Held):
    whole = False


class OfALayer:
    def __init__(self) -> None:
        self.total: Any = 0.0
        self.count = 0

    def add(self, x: Tensor) -> Tensor:
        totals = x.cumsum(1) + self.total
        counts = self.count + torch.arange(1, x.shape[1] + 1)
        self.total, self.count = totals[:, -1:], self.count + x.shape[1]
        return totals / counts[:, None]

    def reset(self) -> None:
        self.total, self.count = 0.0, 0


class KeepsTotal(OfALayer):
    def reset(self) -> None:
        self.count = 0


class Means(nn.Module):
    """A cache for each layer, in a list."""

    def __init__(self, kind: type = OfALayer) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(LAYERS))

    def make_caches(self) -> Any:
        return [self.kind() for _ in range(LAYERS)]

    def forward(self, x: Tensor, caches: Any = None) -> Tensor:
        for layer, cache in zip(self.layers, caches or [self.kind() for _ in range(LAYERS)], strict=True):
            x = x + layer(cache.add(x))
        return x


class Peaks:
    """The largest so far of each channel, which begins at minus infinity."""

    first = -torch.inf

    def __init__(self, rows: int) -> None:
        self.peak = torch.full((rows, 1, DIM), -torch.inf)

    def reset(self) -> None:
        self.peak = torch.full_like(self.peak, self.first)


class PeaksOfZero(Peaks):
    first = 0.0


class Largest(nn.Module):
    def __init__(self, kind: type = Peaks) -> None:
        super().__init__()
        self.kind, self.out = kind, nn.Linear(DIM, DIM)

    def init_state(self, batch_size: int) -> Any:
        return self.kind(batch_size)

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        state = state or self.kind(len(x))
        peaks = torch.cat((state.peak.to(x.dtype), x - 3), 1).cummax(1).values[:, 1:]
        state.peak = peaks[:, -1:]
        return self.out(peaks)


class Rows:
    """Sums and counts of each row."""

    def __init__(self, batch_size: int) -> None:
        self.total, self.count = torch.zeros(batch_size, 1, DIM), torch.zeros(batch_size, 1, 1)

    def add(self, x: Tensor) -> Tensor:
        totals = x.cumsum(1) + self.total.to(x.dtype)
        counts = self.count + torch.arange(1, x.shape[1] + 1)[None, :, None]
        self.total, self.count = totals[:, -1:], counts[:, -1:]
        return totals / counts

    def reset(self, rows: Tensor) -> None:
        self.total[rows], self.count[rows] = 0, 0


class RowsOfAll(Rows):
    """The count of every row begins again."""

    def reset(self, rows: Tensor) -> None:
        self.total[rows] = 0
        self.count.zero_()


class RowsOfSome(Rows):
    """Counts stay."""

    def reset(self, rows: Tensor) -> None:
        self.total[rows] = 0


class RowsByMask(Rows):
    def reset(self, mask: Tensor) -> None:  # type: ignore[override]
        self.total = torch.where(mask[:, None, None], 0, self.total)
        self.count = self.count * (~mask)[:, None, None]


class RowsByMaskOfSome(Rows):
    def reset(self, done: Tensor) -> None:  # type: ignore[override]
        self.total = torch.where(done[:, None, None], 0, self.total)


class RowsOneByOne(Rows):
    def reset(self, index: int) -> None:  # type: ignore[override]
        assert type(index) is int
        self.total[index], self.count[index] = 0, 0


class RowsOrAll(Rows):
    def reset(self, rows: Tensor | None = None) -> None:
        at = slice(None) if rows is None else rows
        self.total[at], self.count[at] = 0, 0


class RowMeans(nn.Module):
    def __init__(self, kind: type = Rows) -> None:
        super().__init__()
        self.kind, self.out = kind, nn.Linear(DIM, DIM)

    def init_state(self, batch_size: int) -> Any:
        return self.kind(batch_size)

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        return x + self.out((state or Rows(len(x))).add(x))


def subject_of(make: Callable[[], Any]) -> Subject:
    def factory() -> Any:
        torch.manual_seed(0)
        return make()

    return adapt(SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True), factory)


def findings(subject: Subject) -> tuple[Finding, ...]:
    return run_check(registry.load("DEC116"), subject).findings
