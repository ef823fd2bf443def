"""Modules whose calls take long, the longer the sequence; the faulty line is marked."""

import time

from torch import Tensor

from .host import Host, Part, hosting

_SECONDS_PER_TOKEN = 0.0015


def _wait(x: Tensor) -> Tensor:
    time.sleep(_SECONDS_PER_TOKEN * x.shape[1])
    return x


def _average(x: Tensor) -> Tensor:
    return _wait(x) + x.mean(1, keepdim=True)  # here


def healthy() -> Host:
    return Host(Part(_wait))


sees_the_future = hosting(_average)
