"""The stack that is examined, and a trainer of a model around it."""

from torch import nn

from .config import QuarryConfig, TrainConfig
from .model import QuarryStack
from .training import TinyLM, Trainer


def make() -> nn.Module:
    """A small stack: embeddings [B, S, 64] in and out."""
    return QuarryStack(QuarryConfig())


def make_trainer() -> Trainer:
    """A trainer of a small language model."""
    cfg = TrainConfig()
    return Trainer(TinyLM(QuarryConfig(), cfg.vocab), cfg)
