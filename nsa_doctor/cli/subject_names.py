"""How a subject is named on a command line, and what to write in place of a path."""

import os
import re
from pathlib import PurePath

from nsa_doctor.core.like import FUNCTION

_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SOURCE = ".py"


def is_named(words: str) -> bool:
    """Whether this is package.module:name; attn.py:name is a path."""
    return _NAMED.fullmatch(words) is not None and not words.partition(":")[0].endswith(_SOURCE)


def in_place_of_path(words: str) -> str:
    """`: write sub.attn:Attention` for sub/attn.py:Attention, as the end of a sentence; "" for what is no path."""
    prefix = FUNCTION if words.startswith(FUNCTION) else ""
    path, _, name = words.removeprefix(FUNCTION).partition(":")
    if not path.endswith(_SOURCE) and os.sep not in path:
        return ""
    near = os.path.relpath(path) if os.path.isabs(path) else os.path.normpath(path)
    parts = PurePath(near).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    named = f"{module}:{name or 'NAME'}"
    if not is_named(named):
        return ""
    what = "" if name else f", NAME being a {'function' if prefix else 'class or a factory'} of that file"
    return f": write {prefix}{named}{what}"
