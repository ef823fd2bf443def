"""Modules that keep something between calls: in a way that changes no output, and one that makes two runs differ."""

import threading

import torch
from torch import Tensor, nn

from .host import DIM, Host


def _waves(length: int) -> Tensor:
    return torch.outer(torch.arange(length), torch.arange(1, DIM + 1)).float().mul(0.1).cos()


class _FilledTable(nn.Module):
    """A buffer that is filled in place as far as an int says."""

    def __init__(self) -> None:
        super().__init__()
        self.max_seq_len_cached = 0
        self.register_buffer("cos_cached", torch.zeros(512, DIM), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.max_seq_len_cached:
            self.cos_cached[:length] = _waves(length).to(x)
            self.max_seq_len_cached = length
        return x * self.cos_cached[:length].to(x)


class _GrownTable(nn.Module):
    """A buffer that makes room for itself where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.max_seq_len_cached = 4
        self.register_buffer("cos_cached", _waves(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.max_seq_len_cached:
            self.cos_cached.data = _waves(length).to(x)
            self.max_seq_len_cached = length
        return x * self.cos_cached[:length].to(x)


class _ReplacedTable(nn.Module):
    """A buffer that is None until it is needed, and another one once it is too short."""

    def __init__(self) -> None:
        super().__init__()
        self.max_seq_len_cached = 0
        self.register_buffer("cos_cached", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length > self.max_seq_len_cached:
            self.cos_cached = _waves(length).to(x)
            self.max_seq_len_cached = length
        return x * self.cos_cached[:length].to(x)


class _TablesByLength(nn.Module):
    """A dict of tensors, whose values lie in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}
        self.lock = threading.Lock()
        self.register_buffer("store", torch.zeros(512, DIM), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        with self.lock:
            if length not in self.tables:
                self.store[:length] = _waves(length).to(x)
                self.tables[length] = self.store[:length]
        return x * self.tables[length].to(x)


class _KeyValueList(nn.Module):
    """A list of the keys and values of the last calls, and their number in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[tuple[Tensor, Tensor]] = []
        self.register_buffer("num_valid", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.cache) != int(self.num_valid):
            raise RuntimeError(f"{len(self.cache)} entries, and {int(self.num_valid)} were counted")
        self.cache = [*self.cache[-3:], (x.detach(), 2 * x.detach())]
        self.num_valid.fill_(len(self.cache))
        return x


class _Counter(nn.Module):
    """A count of steps beside a buffer that is made at the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.register_buffer("scale", torch.zeros(DIM), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.steps == 0:
            self.scale.copy_(torch.linspace(1, 2, DIM))
        self.steps += 1
        return x * self.scale.to(x)


class _Clocked(nn.Module):
    """Noise that no seed reaches."""

    def forward(self, x: Tensor) -> Tensor:
        unseeded = torch.Generator()
        unseeded.seed()
        return x + torch.randn(x.shape[2], generator=unseeded).to(x)  # here


HEALTHY = {
    "filled_table": _FilledTable,
    "grown_table": _GrownTable,
    "replaced_table": _ReplacedTable,
    "tables_by_length": _TablesByLength,
    "key_value_list": _KeyValueList,
    "counter": _Counter,
}


def filled_table() -> nn.Module:
    return Host(_FilledTable())


def grown_table() -> nn.Module:
    return Host(_GrownTable())


def replaced_table() -> nn.Module:
    return Host(_ReplacedTable())


def tables_by_length() -> nn.Module:
    return Host(_TablesByLength())


def key_value_list() -> nn.Module:
    return Host(_KeyValueList())


def counter() -> nn.Module:
    return Host(_Counter())


def clocked() -> nn.Module:
    return Host(_Clocked())
