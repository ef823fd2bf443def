"""Switches read from the environment, at every call.

QUARRY_ABSORB     auto, always or never: whether queries go to the latents (absorbed) or latents become keys and values
                  (expanded). "auto" absorbs in decoding. Outputs stay the same.
QUARRY_FUSED      0 or off: never the fused softmax. Outputs stay the same.
QUARRY_RECOMPUTE  0 or off: training keeps what it computed, whatever the configuration says.
"""

import os

ABSORB = ("auto", "always", "never")


def switch(name: str, default: bool = True) -> bool:
    """A switch that is on or off."""
    value = os.environ.get(name, "").strip().lower()
    return default if not value else value not in ("0", "off", "false", "no")


def absorb(decoding: bool) -> bool:
    """Whether to absorb, for one call."""
    choice = os.environ.get("QUARRY_ABSORB", "auto").strip().lower() or "auto"
    if choice not in ABSORB:
        raise ValueError(f"QUARRY_ABSORB={choice!r} is not one of {ABSORB}")
    return decoding if choice == "auto" else choice == "always"
