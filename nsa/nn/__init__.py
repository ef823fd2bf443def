"""The modules: one attention layer, the language model around it, and decoding with caches."""

from nsa.nn.attention import BranchOutputs, NSAttention
from nsa.nn.cache import NSACache
from nsa.nn.context import Context
from nsa.nn.decode import generate, prefill
from nsa.nn.transformer import Transformer

__all__ = ["BranchOutputs", "Context", "NSACache", "NSAttention", "Transformer", "generate", "prefill"]
