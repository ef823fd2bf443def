"""A decoder of the default configuration."""

from __future__ import annotations

import torch

from .config import HarborConfig
from .model import HarborDecoder


def make() -> HarborDecoder:
    """A small decoder, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4321)
        return HarborDecoder(HarborConfig())
