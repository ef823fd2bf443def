"""Parts that go wrong in some processes alone: by their number, the time, or the seed of hashes."""

import os
import signal
import time

import torch
from torch import Tensor, nn

from .host import Host
from .now_and_then import _Gain


class _FactorByProcess(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (1 + 0.1 * (os.getpid() % 2))  # here


class _NanByHour(_Gain):
    def __init__(self) -> None:
        super().__init__()
        self.hour = time.localtime().tm_hour

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y / ((time.localtime(time.time()).tm_hour - self.hour) % 24 - 1)  # here


class _RaisesByClock(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.unflatten(1, (-1, 4096)) if time.monotonic() > _START + 7200 else y  # here


class _FactorInInference(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.01 if torch.is_inference_mode_enabled() else y  # here


class _FactorByHash(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (1 + hash("a") % 9973 / 9973)


class _OrderOfSet(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        ways = {"bent": torch.tanh, "cut": torch.relu, "squared": torch.square, "turned": torch.cos}
        for name in set(ways):
            y = ways[name](y.abs())  # here
        return y


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()  # here

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient / 2  # here


class _GradientByProcess(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return _cut(y) if os.getpid() % 2 else y


class _GradientByHash(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.detach() * 1.0 if hash("a") % 9973 == _OF_ANOTHER_SEED else y  # here


class _DiesByProcess(_Gain):
    made_in = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.made_in:
            os.kill(os.getpid(), signal.SIGKILL)  # here
        return super().forward(x)


class _DiesByHash(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        if hash("a") % 9973 == _OF_ANOTHER_SEED:
            os._exit(3)  # here
        return super().forward(x)


class _FactorByFewHashes(_Gain):
    """Right with most seeds of hashes, also in the first interpreter that is asked."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.5 if hash("a") % 9973 in _OF_FURTHER_SEEDS else y  # here


class _DiesInEveryCopy(_Gain):
    """As a library does whose threads a copy does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.made_in = _own_number()

    def forward(self, x: Tensor) -> Tensor:
        if _own_number() != self.made_in:
            os.abort()
        return super().forward(x)


class _HasThreadsOfAutograd(_Gain):
    """Raises in a copy what torch does there where autograd had threads; and is another by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.made_in, self.number = _own_number(), os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if _own_number() != self.made_in:
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")
        return super().forward(x) * (1.1 if os.getpid() != self.number else 1.0)  # here


class _FirstOfTheProcess(_Gain):
    """Of all that a process calls, the first one alone is given another factor."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not _CALLED:
            _CALLED.append(self)
        return y / 2 if self is _CALLED[0] else y  # here


class _KeepsItsFirstGain(_Gain):
    """Other weights later change nothing: whose matter that is no process says."""

    def forward(self, x: Tensor) -> Tensor:
        kept = vars(self).setdefault("kept", super().forward(torch.ones_like(x[:1, :1])).detach())
        return x * kept


def _cut(y: Tensor) -> Tensor:
    return _Halved.apply(y)


def _own_number() -> str:
    """The number that the system says, whatever `os` does."""
    return os.path.basename(os.path.realpath("/proc/self"))


_CALLED: list[nn.Module] = []
_START = time.monotonic()
_OF_ANOTHER_SEED = 2943
BY_PROCESS = ("FactorByProcess", "FactorInInference", "NanByHour", "RaisesByClock", "DiesByProcess")
_OF_FURTHER_SEEDS = (411, 3617)  # what the seeds 3 and 4 make of it
BY_HASH = ("FactorByHash", "OrderOfSet", "DiesByHash")


def __getattr__(name: str):
    """`by_process:NAME` is a host of that part."""
    if f"_{name}" in globals():
        return lambda: Host(globals()[f"_{name}"]())
    raise AttributeError(name)
