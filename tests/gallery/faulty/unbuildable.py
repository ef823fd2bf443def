"""Subjects that raise while they are built: the factory, a constructor, or a build that is not the first."""

from itertools import count

from torch import Tensor, nn

from .host import DIM

_builds = count(1)


class _Layer(nn.Module):
    def __init__(self, is_whole: bool) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, DIM)
        if not is_whole:
            raise RuntimeError("no such kernel")  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def factory() -> nn.Module:
    raise ValueError("boom")  # here


def constructor() -> nn.Module:
    return _Layer(is_whole=False)


def second_build() -> nn.Module:
    if next(_builds) > 1:
        raise RuntimeError("port is in use")  # here
    return _Layer(is_whole=True)
