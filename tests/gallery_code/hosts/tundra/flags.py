"""Switches read from the environment, at every call.

TUNDRA_SELECTED   auto, gather or dense: how chosen blocks are read. "auto" takes the mask for few tokens and gathers
                  for many. Outputs stay the same.
TUNDRA_CHUNK      how many queries attend at once, in place of the configuration's number. Outputs stay the same.
TUNDRA_RECOMPUTE  0 or off: training keeps what attention computed, whatever the configuration says.
"""

import os

SELECTED = ("auto", "gather", "dense")
OFF = ("0", "off", "false", "no")


def text(name: str, default: str) -> str:
    """A variable's value in small letters; the default where it is unset or empty."""
    return os.environ.get(name, "").strip().lower() or default


def switch(name: str, default: bool = True) -> bool:
    """A switch that is on or off."""
    return text(name, "1" if default else "0") not in OFF


def dense(tokens: int, dense_up_to: int) -> bool:
    """Whether chosen blocks of so many tokens are read by a mask, for one call."""
    choice = text("TUNDRA_SELECTED", "auto")
    if choice not in SELECTED:
        raise ValueError(f"TUNDRA_SELECTED={choice!r} is not one of {SELECTED}")
    return tokens <= dense_up_to if choice == "auto" else choice == "dense"


def query_chunk(default: int) -> int:
    """How many queries attend at once, for one call."""
    value = int(text("TUNDRA_CHUNK", str(default)))
    if value < 1:
        raise ValueError(f"TUNDRA_CHUNK={value} is less than 1")
    return value
