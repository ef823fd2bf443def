"""What the model takes from transformers that transformers does not promise: its private names are used here alone."""

import transformers
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin


def is_initialized(parameter: Tensor) -> bool:
    """Whether its values were loaded or drawn: `_is_hf_initialized`, which the functions that draw go by."""
    return getattr(parameter, "_is_hf_initialized", False)


def mark_initialized(parameter: Tensor) -> None:
    """Have transformers leave its values as they are."""
    parameter._is_hf_initialized = True  # type: ignore[attr-defined]


def implementation_of(config: PreTrainedConfig) -> str:
    """The `attn_implementation` that a configuration was given, or had set: `_attn_implementation`."""
    name: str = config._attn_implementation
    return name


def require_named_layers() -> None:
    """Raise ImportError for a transformers whose caches do not find their layers by `_layer_type`."""
    if not hasattr(CacheLayerMixin, "_layer_type"):
        raise ImportError(
            "nsa.hf needs transformers 5.23 or newer, whose caches find their layers by name, "
            f"got {transformers.__version__}: pip install --upgrade transformers"
        )
