"""Whether a module's configuration speaks of blocks and of how many of them are chosen: block-sparse attention."""

import re
from typing import Any

from torch import nn

_HOLDERS = ("config", "cfg", "args", "geometry")
_A_BLOCK = re.compile(
    r"block_(?:size|len|length)|(?:sel|select|selected|selection|compress\w*|cmp)_(?:block|len|length|size)"
)
_A_CHOICE = re.compile(
    r"top_?(?:k|n)|n(?:um)?_(?:sel|select|selected|selections|chosen)|(?:sel|select|selected|chosen)_?\w*blocks|block_counts?"
)


def speaks_of_chosen_blocks(module: nn.Module) -> bool:
    """Whether a module, a part of it or what it was configured by holds the size of a block and a number of choices."""
    return any(_has_both(_numbers(part)) for part in module.modules())


def _numbers(part: nn.Module) -> set[str]:
    holders: list[Any] = [part, *(getattr(part, name, None) for name in _HOLDERS)]
    tables = [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in holders]
    return {str(name) for table in tables for name, value in table.items() if type(value) is int and value > 0}


def _has_both(names: set[str]) -> bool:
    return all(any(pattern.search(name) for name in names) for pattern in (_A_BLOCK, _A_CHOICE))
