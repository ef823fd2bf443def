"""Switches read from the environment, at every call.

MOSAIC_SCAN       auto, parallel, loop or recurrent: which scan the linear mixers use, whatever the configuration says.
MOSAIC_LANDMARKS  0 or off: local mixers see no landmarks. For ablations; outputs change.
MOSAIC_SDPA       0 or off: local mixers never use torch's scaled_dot_product_attention. Outputs stay the same.
"""

import os
import warnings

_FALSE = ("0", "off", "false", "no")


def switch(name: str, default: bool = True) -> bool:
    """A switch that is on or off."""
    value = os.environ.get(name)
    if value is None or not value.strip():
        return default
    return value.strip().lower() not in _FALSE


def landmarks_enabled() -> bool:
    """Whether local mixers see landmarks."""
    return switch("MOSAIC_LANDMARKS")


def sdpa_enabled() -> bool:
    """Whether local mixers may use torch's own attention."""
    return switch("MOSAIC_SDPA")


def scan_name(configured: str, known: tuple[str, ...]) -> str:
    """The scan to use: the environment's when it names a known one, else the configured one."""
    name = os.environ.get("MOSAIC_SCAN", "").strip().lower()
    if name and name not in known:
        warnings.warn(f"MOSAIC_SCAN={name!r} is not one of {known}; using {configured!r}", stacklevel=2)
        return configured
    return name or configured
