"""The language model as a model of Hugging Face's transformers: configuration, model, cache and conversions.

Nothing else of nsa imports transformers. Without it, importing this package raises ImportError, which says what to
install.
"""

import importlib.util

if importlib.util.find_spec("transformers") is None:
    raise ImportError("nsa.hf needs transformers, which is not installed: pip install 'transformers>=5.23'")

from nsa.hf.cache import NSACacheLayer, NSAStaticCacheLayer
from nsa.hf.configuration import NSAConfig
from nsa.hf.conversion import from_checkpoint, from_transformer, to_transformer, transformer_tensors
from nsa.hf.modeling import NSAForCausalLM, NSAModel, NSAPreTrainedModel
from nsa.hf.registration import register

__all__ = [
    "NSACacheLayer",
    "NSAConfig",
    "NSAForCausalLM",
    "NSAModel",
    "NSAPreTrainedModel",
    "NSAStaticCacheLayer",
    "from_checkpoint",
    "from_transformer",
    "register",
    "to_transformer",
    "transformer_tensors",
]
