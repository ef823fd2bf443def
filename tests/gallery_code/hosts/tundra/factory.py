"""The stack that is examined, and a trainer of a model around one."""

from torch import nn

from .config import TrainConfig, TundraConfig
from .model import TundraStack
from .training import TinyLM, Trainer


def make() -> nn.Module:
    """A small stack: embeddings [B, S, 48] in and out."""
    return TundraStack(TundraConfig())


def make_trainer() -> Trainer:
    """A trainer of a small language model, in training mode."""
    cfg = TrainConfig()
    return Trainer(TinyLM(TundraConfig(), cfg.vocab, cfg.dropout).train(), cfg)
