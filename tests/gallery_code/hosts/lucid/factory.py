"""A block of the default configuration."""

from __future__ import annotations

import torch

from .block import LucidBlock
from .config import LucidConfig


def make() -> LucidBlock:
    """A small block, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        return LucidBlock(LucidConfig())
