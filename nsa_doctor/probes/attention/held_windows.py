"""Windows of attention that parts of a module hold as numbers of tokens, and how far each may reach at most."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

_SPEAKING = re.compile(  # of attention
    r"sliding_window(_size|_len|_length)?|(local_|one_sided_)?(attn|attention)_window(_size|_len|_length)?"
    r"|local_window(_size|_len|_length)?"
)
_WINDOW = re.compile(r"window(_size|_len|_length)?|win(_size)?")  # of anything
_OF_ATTENTION = re.compile(r"attn|attention|sliding|local|window", re.IGNORECASE)
_UNITS = re.compile(r"block|chunk|bucket|stride|patch|dilat|segment|page|group_size|kernel|pool|frame", re.IGNORECASE)
_IS_LOCAL, _IS_GLOBAL = re.compile(r"window|sliding|local|sparse|banded|swa"), re.compile(r"global|full|dense")
_CONFIGURATIONS = ("config", "cfg", "args", "hparams")

Value = int | tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A window: the part that holds it under a name, the value, and how many tokens away it may reach at most.

    `is_of_attention` where the name, or that of the part's class, says so. `is_off` where the part says that it serves
    without a window, or uses the number for something that it holds: a pooling or a table of positions.
    """

    path: str
    module: nn.Module
    name: str
    value: Value
    reach: int
    is_of_attention: bool
    is_off: bool

    @property
    def others(self) -> tuple[Value, ...]:
        """A shorter and a longer window of the same form."""
        largest = max(self.value) if isinstance(self.value, tuple) else self.value
        numbers = (1 if largest > 1 else 3, 2 * largest + 1)
        return tuple((each,) * len(self.value) if isinstance(self.value, tuple) else each for each in numbers)


def held_windows(root: nn.Module) -> Iterator[Held]:
    """All of a module and its parts; torch's own hold none of attention."""
    for path, part in root.named_modules():
        if type(part).__module__.startswith("torch."):
            continue
        for name, value in vars(part).items():
            speaks = _SPEAKING.fullmatch(name) is not None
            window = _window(value) if speaks or _WINDOW.fullmatch(name) else None
            if window is None:
                continue
            speaks = speaks or _OF_ATTENTION.search(type(part).__name__) is not None
            yield Held(path, part, name, window, _reach(part, window), speaks, _is_off(part, window))


def _window(value: object) -> Value | None:
    """A whole number above zero, or two or more that begin with one and leave no side open; None for other values."""
    if isinstance(value, (tuple, list)) and len(value) > 1:
        numbers = tuple(each for each in value if type(each) is int and each >= 0)
        return numbers if len(numbers) == len(value) and numbers[0] > 0 else None
    return value if type(value) is int and value > 0 else None


def _reach(part: nn.Module, window: Value) -> int:
    """In tokens where the number counts blocks that the part knows of, or is an area of a grid."""
    units = (value for name, value in vars(part).items() if type(value) is int and _UNITS.search(name))
    if isinstance(window, int):
        return window * max(units, default=1)
    area = 1
    for each in window:
        area *= max(each, 1)
    return max(area, sum(window)) * max(units, default=1)


def _is_off(part: nn.Module, window: Value) -> bool:
    said = list(vars(part).items())
    for name in _CONFIGURATIONS:
        said += getattr(vars(part).get(name), "__dict__", {}).items()
    for name, value in said:
        is_switch = isinstance(value, bool)
        if is_switch and ((not value and _IS_LOCAL.search(name)) or (value and _IS_GLOBAL.search(name))):
            return True
        if isinstance(value, str) and name not in ("path", "name") and _IS_GLOBAL.search(value):
            return True
    numbers = set(window) if isinstance(window, tuple) else {window}
    for inner in part.modules():
        sizes = [getattr(inner, name, None) for name in ("kernel_size", "stride", "dilation", "output_size")]
        flat = {each for size in sizes for each in (size if isinstance(size, (tuple, list)) else (size,))}
        if any(number > 1 and number in flat for number in numbers):
            return True
    tables = {2 * number + more for number in numbers for more in (-1, 1)}  # of positions up to so far apart
    held = (*part.parameters(recurse=False), *part.buffers(recurse=False))
    if any(number > 1 and number in each.shape for number in numbers for each in held):  # a kernel of its own
        return True
    inner_tables = (each.weight for each in part.children() if isinstance(each, nn.Embedding))
    return any(tables & set(each.shape) - {1, 3} for each in (*held, *inner_tables))
