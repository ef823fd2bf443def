"""Native Sparse Attention (arXiv 2502.11089) for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa.config import ModelConfig, NSAConfig, RunConfig, load_config
    from nsa.nn import NSACache, NSAttention, Transformer, generate, prefill
    from nsa.ops.api import NSAOutput, nsa_attention
    from nsa.ops.geometry import Geometry
    from nsa.strict import ConfigError

# Where each name lives: torch is loaded with the first that needs it, so that reading a file does not wait for it.
_HOMES = {
    "ConfigError": "nsa.strict",
    "Geometry": "nsa.ops.geometry",
    "ModelConfig": "nsa.config",
    "NSACache": "nsa.nn",
    "NSAConfig": "nsa.config",
    "NSAOutput": "nsa.ops.api",
    "NSAttention": "nsa.nn",
    "RunConfig": "nsa.config",
    "Transformer": "nsa.nn",
    "generate": "nsa.nn",
    "load_config": "nsa.config",
    "nsa_attention": "nsa.ops.api",
    "prefill": "nsa.nn",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
