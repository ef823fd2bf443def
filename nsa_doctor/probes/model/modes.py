"""Modes of a module and its parts, set without their own `train` and `eval`, which may do more."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A region in which all parts are in evaluation mode."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
