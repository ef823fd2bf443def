"""Models of the sizes that tests and scripts use."""

from dataclasses import replace

from .config import CobaltConfig
from .model import CobaltDecoder, CobaltLM


def make(**changes) -> CobaltDecoder:
    """A small decoder over embeddings."""
    return CobaltDecoder(replace(CobaltConfig(), **changes))


def make_lm(**changes) -> CobaltLM:
    """A small language model, with dropout."""
    return CobaltLM(replace(CobaltConfig(dropout=0.1), **changes))
