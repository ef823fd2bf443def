"""cobalt: Native Sparse Attention (arXiv 2502.11089) as a layer, a decoder and a small language model."""

from .attention import NSAAttention
from .cache import CobaltCache
from .config import CobaltConfig, TrainConfig
from .factory import make, make_lm
from .generate import generate
from .model import CobaltDecoder, CobaltLM, LMOutput
from .train import Trainer

__all__ = [
    "CobaltCache",
    "CobaltConfig",
    "CobaltDecoder",
    "CobaltLM",
    "LMOutput",
    "NSAAttention",
    "TrainConfig",
    "Trainer",
    "generate",
    "make",
    "make_lm",
]
