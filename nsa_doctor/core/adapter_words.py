"""How a module that asks for more than its input is called with one tensor, as a line of Python shows it."""

import re
from collections.abc import Sequence

_OF_ATTENTION = re.compile(r"(q|k|v|quer(y|ies)|keys?|values?)(_states?)?", re.IGNORECASE)


def is_of_attention(name: str) -> bool:
    """Whether an argument of this name is a query, a key or a value, for which self-attention takes its input."""
    return _OF_ATTENTION.fullmatch(name) is not None


def adapter_words(make: str, names: Sequence[str]) -> str:
    """The adapter of a module whose forward cannot do without these arguments; what its owner has to say is a `…`."""
    given = ["x" if not index or is_of_attention(name) else f"{name}=…" for index, name in enumerate(names)]
    return f"Adapter(make={make}, call=lambda module, x: module({', '.join(given)}))"
