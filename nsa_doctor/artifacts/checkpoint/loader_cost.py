"""What a loader that does what a pickle says would make of it: memory and time that the file itself does not take.

Nothing is made here: sizes are read off the arguments, and what is larger than any file of weights needs is unsafe.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from nsa_doctor.artifacts.checkpoint.pickled_values import Made, Name, Row, Table
from nsa_doctor.artifacts.checkpoint.symbols import MADE_AS_TENSORS

MOST_MADE = 2**27  # values and bytes that all calls of a file together may make
MOST_DIGITS = 4300  # beyond which Python neither reads nor prints a whole number
_MOST_KEY_DEPTH = 500  # of tuples in tuples, which a hash goes down to the end
_CODECS = frozenset({"latin1", "latin-1", "utf-8", "utf8", "ascii"})  # any other may take long, or make much
# What makes as much as the numbers among its arguments say.
_COUNTED = frozenset(
    {
        *("builtins.bytes", "builtins.bytearray", "torch.storage.UntypedStorage", "torch.storage.TypedStorage"),
        *("numpy.ndarray", "numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct"),
        "copyreg._reconstructor",
    }
    | {name for name in MADE_AS_TENSORS if "._rebuild" not in name}
)
_HASHING = frozenset(
    {
        *(f"builtins.{name}" for name in ("set", "frozenset", "dict")),
        *(f"collections.{name}" for name in ("OrderedDict", "Counter", "defaultdict")),
        "copyreg._reconstructor",
    }
)
_OF_ONE_VALUE = frozenset(f"builtins.{name}" for name in ("str", "int", "float", "bool", "complex"))
_ENCODING = frozenset({"_codecs.encode", "builtins.bytes", "builtins.bytearray"})
_INDIRECT = "torch._tensor._rebuild_from_type_v2"
_FILLED = {"torch._utils._rebuild_qtensor": 2}  # the argument that is the shape of what is filled, not viewed
_EXPONENT = re.compile(r"e[+-]?\d{4,}", re.IGNORECASE)


def made_by(name: str, arguments: Any) -> int:
    """How many values and bytes calling `name` makes, at most."""
    given = _given(arguments)
    match name, given:
        case "builtins.range", _:
            return 1
        case "torch._tensor._rebuild_from_type_v2", [Name(text=function), _, inner, *_]:
            return made_by(function, inner)
        case "torch._utils._rebuild_device_tensor_from_cpu_tensor", [Made(arguments=(_, _, tuple() as shape, *_)), *_]:
            return 1 + _product(shape)
    if name in _FILLED:
        return 1 + _product(given[_FILLED[name] : _FILLED[name] + 1])
    return 1 + sum(map(_size, given)) + (_product(given) if name in _COUNTED else 0)


def length_of(name: str, arguments: Any) -> int:
    """How many values there are in what a call makes, for what goes through them all."""
    return _length_of_range(_given(arguments)) if name == "builtins.range" else made_by(name, arguments)


def why_unfit(name: str, arguments: Any) -> str:
    """Why no file of weights gives such arguments to `name`, which may take any time with them; nothing if one does."""
    given = _given(arguments)
    if name == _INDIRECT and len(given) > 2 and isinstance(given[0], Name):
        return why_unfit(given[0].text, given[2])
    if name in _OF_ONE_VALUE and not all(map(_is_short, given)):
        return "of more than a short plain value"
    if name in _ENCODING and any(type(each) is str and each not in _CODECS for each in given[1:]):
        return "in an encoding that no file of weights needs"
    if name == "fractions.Fraction" and not all(_is_short(each) and not _has_exponent(each) for each in given):
        return "of more than a plain fraction"
    return ""


def hashed_by(name: str, arguments: Any) -> Iterator[Any]:
    """What calling `name` hashes: the items of its arguments, keys with their values among them."""
    if name in _HASHING:
        for each in _given(arguments):
            yield from _inside(each)


def key_cost(key: Any) -> int:
    """How many values hashing a key goes through, more than `MOST_MADE` where that goes deeper than a process can."""
    known: dict[int, tuple[int, int] | None] = {}
    waiting = [key]
    while waiting:
        node = waiting[-1]
        inside = _inside(node)
        if id(node) not in known:
            known[id(node)] = None
            waiting += [each for each in inside if id(each) not in known and _inside(each)]
            continue
        waiting.pop()
        if known[id(node)] is None:
            parts = [known.get(id(each)) or (1, 0) for each in inside]
            cost, depth = 1 + sum(part[0] for part in parts), 1 + max((part[1] for part in parts), default=0)
            if cost > MOST_MADE or depth > _MOST_KEY_DEPTH:
                return MOST_MADE + 1
            known[id(node)] = cost, depth
    return (known[id(key)] or (1, 0))[0]


def _inside(node: Any) -> Sequence[Any]:
    if isinstance(node, Made):
        return (node.arguments,)
    return node.items if isinstance(node, Row) else node if isinstance(node, tuple) else ()


def _given(arguments: Any) -> Sequence[Any]:
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _size(node: Any) -> int:
    if isinstance(node, Made):
        return node.length + len(node.items) + len(node.pairs)
    if isinstance(node, Row):
        return len(node.items)
    if isinstance(node, Table):
        return len(node.pairs)
    return len(node) if isinstance(node, str | bytes | bytearray | tuple) else 1


def _product(given: Sequence[Any]) -> int:
    """Of all whole numbers in it, as those of a shape; nothing where there is none."""
    numbers = [abs(number) for each in given for number in _numbers(each)]
    return math.prod(numbers) if numbers else 0


def _numbers(node: Any, most_deep: int = 3) -> Iterator[int]:
    if type(node) is int:
        yield node
    elif isinstance(node, Made | Row | tuple) and most_deep:
        for each in _inside(node):
            yield from _numbers(each, most_deep - 1)
    elif isinstance(node, Table):
        yield from (value for _, value in node.pairs if type(value) is int)


def _length_of_range(given: Sequence[Any]) -> int:
    match [each for each in given if type(each) is int]:
        case [stop]:
            return max(0, stop)
        case [start, stop]:
            return max(0, stop - start)
        case [start, stop, step] if step:
            return max(0, -((start - stop) // step))
    return 0


def _is_short(node: Any) -> bool:
    return (
        node is None or type(node) in (int, float, bool) or (isinstance(node, str | bytes) and len(node) <= MOST_DIGITS)
    )


def _has_exponent(node: Any) -> bool:
    return isinstance(node, str) and _EXPONENT.search(node) is not None
