"""Mosaic: gated linear attention interleaved with block-local attention and landmarks."""

from .config import MosaicConfig
from .model import MosaicStack
from .state import ModelState

__all__ = ["ModelState", "MosaicConfig", "MosaicStack"]
