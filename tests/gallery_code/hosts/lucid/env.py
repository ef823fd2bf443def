"""Environment flags. All of them are read at every call, so a running process can be switched.

LUCID_IMPL    auto, dense, gather or tiled: overrides `impl` of the configuration
LUCID_TILE    a positive integer: overrides `query_chunk` of the configuration
LUCID_STRICT  1: what an implementation does not support raises instead of taking another one
"""

from __future__ import annotations

import os

from .config import IMPLEMENTATIONS
from .utils import warn_once


def implementation(default: str) -> str:
    """The implementation that is asked for."""
    value = os.environ.get("LUCID_IMPL", "").strip().lower()
    if not value:
        return default
    if value not in IMPLEMENTATIONS:
        warn_once(f"LUCID_IMPL={value} is none of {', '.join(IMPLEMENTATIONS)} and is ignored")
        return default
    return value


def tile(default: int) -> int:
    """How many queries are worked on at a time."""
    value = os.environ.get("LUCID_TILE", "").strip()
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        warn_once(f"LUCID_TILE={value} is no positive integer and is ignored")
        return default
    return number


def strict() -> bool:
    """Whether falling back is an error."""
    return os.environ.get("LUCID_STRICT", "0").strip().lower() in {"1", "true", "yes", "on"}
