"""Native Sparse Attention (arXiv 2502.11089) for PyTorch."""

from nsa.config import ModelConfig, NSAConfig, RunConfig, load_config
from nsa.nn import NSACache, NSAttention, Transformer, generate, prefill
from nsa.ops.api import NSAOutput, nsa_attention
from nsa.ops.geometry import Geometry
from nsa.strict import ConfigError

__all__ = [
    "ConfigError",
    "Geometry",
    "ModelConfig",
    "NSACache",
    "NSAConfig",
    "NSAOutput",
    "NSAttention",
    "RunConfig",
    "Transformer",
    "generate",
    "load_config",
    "nsa_attention",
    "prefill",
]
