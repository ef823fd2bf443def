"""Variables of the environment that are read at every call, or so it is said.

READ_ONCE_IMPORTED   0 or 1: twice as much
READ_ONCE_DEFAULT    0 or 1: twice as much
READ_ONCE_KEPT       0 or 1: twice as much
READ_ONCE_FOLLOWED   plain or twice: twice as much
"""

import functools
import os

from torch import Tensor, nn

from .host import Host

_TWICE = os.environ.get("READ_ONCE_IMPORTED") == "1"  # here


@functools.cache  # here
def _cached(name: str) -> bool:
    return os.environ.get(name) == "1"


def _read(name: str) -> bool:
    return os.environ.get(name) == "1"


def _from_default(x: Tensor, twice: bool = _read("READ_ONCE_DEFAULT")) -> Tensor:  # here
    return x * 2 if twice else x


class _Part(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "imported":
            return x * 2 if _TWICE else x
        if self.way == "default":
            return _from_default(x)
        if self.way == "kept":
            return x * 2 if _cached("READ_ONCE_KEPT") else x
        return x * 2 if os.environ.get("READ_ONCE_FOLLOWED") == "twice" else x


imported = lambda: Host(_Part("imported"))  # noqa: E731
default = lambda: Host(_Part("default"))  # noqa: E731
kept = lambda: Host(_Part("kept"))  # noqa: E731
followed = lambda: Host(_Part("followed"))  # noqa: E731
