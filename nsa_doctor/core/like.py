"""The names of the conventions by which functions are called, and the words before a subject that is no factory."""

import re

CONVENTIONS = ("sdpa", "flash", "flash_varlen", "flash_kvcache", "flex", "hf", "nsa", "native")
FUNCTION = "fn:"
HUGGING_FACE, LIBRARY, CONFIG_FILE = "hf:", "transformers", "config.json"

_MODEL_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def names_a_class(name: str) -> bool:
    """Whether what stands behind `hf:` is package.module:Class; a model type or a path to a config.json otherwise."""
    return _MODEL_CLASS.fullmatch(name) is not None
