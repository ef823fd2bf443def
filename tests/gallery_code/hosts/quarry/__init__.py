"""Quarry: latent attention on tokens that an indexer selects, with a mixture of experts behind it."""

from .cache import ModelCache
from .config import QuarryConfig
from .model import QuarryStack

__all__ = ["ModelCache", "QuarryConfig", "QuarryStack"]
