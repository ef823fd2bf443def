"""Lucid: attention over compressed blocks, chosen blocks and a sliding window."""

from .block import LucidBlock
from .cache import LucidCache
from .config import LucidConfig
from .layer import LucidAttention

__all__ = ["LucidAttention", "LucidBlock", "LucidCache", "LucidConfig"]
