"""Environment variables, and what to do when an implementation raises.

COBALT_SELECTED     auto, loop, gather, sdpa
COBALT_SLIDING      auto, loop, mask, banded
COBALT_COMPRESSED   auto, loop, mask, sdpa
COBALT_PREFILL      batched, sequential
COBALT_CHECKPOINT   1 recomputes layers in backward, 0 does not; unset leaves it to the config
COBALT_STRICT       1 raises where otherwise the reference would be taken instead

They are read at every call, so that a notebook can switch between two calls.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

REFERENCE = "loop"
FALLBACKS: Counter[tuple[str, str]] = Counter()

_FALSE = ("", "0", "off", "false", "no")


def flag(name: str, default: bool = False) -> bool:
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() not in _FALSE


def choice(name: str, configured: str, allowed: tuple[str, ...]) -> str:
    """What the environment says, else what the config says."""
    value = os.environ.get(name, "").strip().lower() or configured
    if value not in allowed:
        raise ValueError(f"{name}={value}: one of {', '.join(allowed)}")
    return value


def prefill_mode() -> str:
    return choice("COBALT_PREFILL", "batched", ("batched", "sequential"))


def checkpointing(configured: bool) -> bool:
    return flag("COBALT_CHECKPOINT", configured)


def call(branch: str, name: str, table: dict[str, Callable[..., Any]], *args: Any) -> Any:
    """Run one implementation; where it raises, warn once and take the reference."""
    try:
        return table[name](*args)
    except (RuntimeError, NotImplementedError) as error:
        if name == REFERENCE or flag("COBALT_STRICT"):
            raise
        if not FALLBACKS[branch, name]:
            warnings.warn(f"cobalt: {branch} by {name} failed ({error}), taking {REFERENCE}", stacklevel=2)
        FALLBACKS[branch, name] += 1
        return table[REFERENCE](*args)
