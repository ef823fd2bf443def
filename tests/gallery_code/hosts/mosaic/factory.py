"""The stack that is examined."""

from torch import nn

from .config import MosaicConfig
from .model import MosaicStack


def make() -> nn.Module:
    """A small stack: embeddings [B, S, 48] in and out."""
    return MosaicStack(MosaicConfig())
