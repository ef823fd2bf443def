"""What a call says of itself while it takes another way than usual: warnings, and counters of the subject's."""

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from torch import nn

from nsa_doctor.core.errors import Caught, attempt

_OTHER_WAY = re.compile(
    r"fall(?:ing|s|en|back)?[ _-]?back|fell[ _]back|slow(?:er)?[ _-]?path|unsupported|not[ _]supported|not[ _]available"
    r"|unavailable|disabl|degrad|ignor|reference[ _]implementation|retry|retries",
    re.IGNORECASE,
)
_COUNTER = re.compile(r"fall_?back|fail|error|slow|retr(?:y|ies)|skipped|swallow|miss(?:es|ed)?(?:_|$)", re.IGNORECASE)
_Key = tuple[str, str]


@dataclass
class Signs:
    """`warned` has (file, line, text) of warnings that tell of another way, `risen` counters by name and how far."""

    warned: set[tuple[str, int, str]] = field(default_factory=set)
    risen: dict[str, int] = field(default_factory=dict)


@contextmanager
def signs_of_fallbacks(packages: Sequence[str], module: nn.Module) -> Iterator[Signs]:
    """What shows in this region that another way was taken."""
    signs, before = Signs(), _counters(packages, module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield signs
    for each in caught:
        if _OTHER_WAY.search(str(each.message)):
            signs.warned.add((each.filename, each.lineno, str(each.message).partition("\n")[0]))
    for key, count in _counters(packages, module).items():
        if count > before.get(key, 0):
            signs.risen[".".join(part for part in key if part)] = count - before.get(key, 0)


def _counters(packages: Sequence[str], module: nn.Module) -> dict[_Key, int]:
    """Whole numbers of the subject's modules that are named as counters of another way, by who holds them."""
    found: dict[_Key, int] = {}
    for name, loaded in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            found |= _of_names(name, attempt(lambda loaded=loaded: dict(vars(loaded))))
    for path, child in module.named_modules():
        found |= _of_names(path or type(module).__name__, attempt(lambda child=child: dict(vars(child))))
    return found


def _of_names(holder: str, names: Any) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for name, value in {} if isinstance(names, Caught) else names.items():
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            inner = {key: each for key, each in value.items() if _COUNTER.search(key) or _COUNTER.search(name)}
            found |= {(f"{holder}.{name}", key): int(each) for key, each in inner.items() if _is_count(each)}
        elif _COUNTER.search(name) and _is_count(value):
            found[holder, name] = int(value)
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
