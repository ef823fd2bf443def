"""Tundra: a decoder whose heads mix block summaries, selected blocks and a sliding window by gates."""

from .cache import ModelCache
from .config import ConfigError, TrainConfig, TundraConfig
from .model import TundraStack

__all__ = ["ConfigError", "ModelCache", "TrainConfig", "TundraConfig", "TundraStack"]
