"""Harbor: a decoder with alternating windowed and global attention, sinks and a small mixture of experts."""

from .cache import ModelCache
from .config import HarborConfig, RopeScaling
from .model import HarborDecoder

__all__ = ["HarborConfig", "HarborDecoder", "ModelCache", "RopeScaling"]
