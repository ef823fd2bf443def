"""What an attention function is declared to compute: the words of `--spec` for a function, read and checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.nearest import nearest

Alignment = Literal["top_left", "bottom_right"]
UNLIMITED = -1
_MOST = 2**20


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """What a function computes; `words` are those that said so, and none mean that nothing is declared.

    window: how many keys before and after its own position a query reads, -1 for all; None where no window is declared.
    ratio: query heads per head of keys and values. heads, head_sizes, value_size: the sizes it is made for, where it is
    made for some alone. align: which corner of the mask the diagonal runs through where queries and keys differ in
    number; None leaves it to the calling convention. is_built_in: the function does by itself what it has no argument
    for. block, num_blocks: size and number of the blocks that each query of a sparse function chooses.
    """

    words: tuple[str, ...] = ()
    is_causal: bool = False
    align: Alignment | None = None
    window: tuple[int, int] | None = None
    ratio: int = 1
    heads: int | None = None
    head_sizes: tuple[int, ...] = ()
    value_size: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    has_sinks: bool = False
    has_alibi: bool = False
    has_mask: bool = False
    is_forward_only: bool = False
    is_square: bool = False
    is_built_in: bool = False
    block: int = 16
    num_blocks: int = 4

    @property
    def is_declared(self) -> bool:
        """Whether the words say which keys are read: then there is a truth to compare with."""
        return any(word.partition("=")[0] in _SEMANTIC for word in self.words)

    def word_of(self, meaning: str) -> str:
        """The word that asked for a meaning, as a person wrote it."""
        return next((word for word in self.words if word.partition("=")[0] == meaning), meaning)


def function_spec(text: str | None) -> FunctionSpec:
    """Read `--spec` of a function; raises OptionError for an unknown word, a wrong value and a contradiction."""
    given = (word.strip() for word in (text or "").split(",") if word.strip())
    words = tuple(dict.fromkeys(_ALIKE.get(word, word) for word in given))
    if text is not None and not words:
        raise OptionError("--spec must hold words such as causal,window=512, got nothing")
    values: dict[str, Any] = {}
    names = [word.partition("=")[0] for word in words]
    for word, name in zip(words, names, strict=True):
        if name not in _WORDS:
            raise OptionError(f"--spec cannot hold {word!r} for a function: {nearest(name, list(_WORDS))}")
        if names.count(name) > 1:
            raise OptionError(f"--spec says {name} twice: {', '.join(w for w in words if w.partition('=')[0] == name)}")
        values |= _WORDS[name](name, word.partition("=")[2] if "=" in word else None)
    if "num_keys" in values:  # a window that counts its own key has no side of its own
        before = values.pop("num_keys") - 1
        values["window"] = (before, 0 if "is_causal" in values else before)
    spec = FunctionSpec(words=words, **values)
    _check_consistent(spec)
    return spec


def _check_consistent(spec: FunctionSpec) -> None:
    names = {word.partition("=")[0] for word in spec.words}
    for one, other in (("causal", "full"), ("top_left", "bottom_right"), ("square", "top_left")):
        if {one, other} <= names:
            raise OptionError(f"--spec cannot be {one} and {other} at once; leave one out")
    if spec.heads is not None and spec.heads % spec.ratio:
        raise OptionError(
            f"--spec: heads={spec.heads} cannot be shared out by gqa={spec.ratio}: {spec.heads} % {spec.ratio} != 0"
        )
    if spec.is_causal and spec.window is not None and spec.window[1] > 0:
        raise OptionError(
            f"--spec: causal reads no key after the query, and {spec.word_of('window')} reads {spec.window[1]} of them"
        )
    if names & {"top_left", "bottom_right"} and not (spec.is_causal or spec.window):
        raise OptionError("--spec: top_left and bottom_right say where the diagonal of causal or window runs; add one")
    if names and not spec.is_declared:
        raise OptionError(
            f"--spec {','.join(spec.words)} does not say which keys are read: add causal, full or window=W"
        )


def _flag(**meaning: Any) -> Callable[[str, str | None], dict[str, Any]]:
    def read(name: str, value: str | None) -> dict[str, Any]:
        if value is not None:
            raise OptionError(f"--spec: {name} takes no value, got {name}={value}")
        return meaning

    return read


def _number(
    field_name: str, kind: type[int] | type[float], least: float
) -> Callable[[str, str | None], dict[str, Any]]:
    def read(name: str, value: str | None) -> dict[str, Any]:
        return {field_name: _value(name, value, kind, least)}

    return read


def _value(name: str, text: str | None, kind: type[int] | type[float], least: float) -> Any:
    what = "a whole number" if kind is int else "a number"
    try:
        value = kind(text or "")
    except ValueError:
        raise OptionError(
            f"--spec: {name} must be {what}, as {name}={8 if kind is int else 0.5}, got {text!r}"
        ) from None
    if not least <= value <= _MOST:
        raise OptionError(f"--spec: {name} must be from {least:g} to {_MOST}, got {value:g}")
    return value


def _positive(field_name: str) -> Callable[[str, str | None], dict[str, Any]]:
    def read(name: str, value: str | None) -> dict[str, Any]:
        number = _value(name, value, float, 0.0)
        if not number > 0:
            raise OptionError(f"--spec: {name} must be above 0, got {value}")
        return {field_name: number}

    return read


def _window(name: str, value: str | None) -> dict[str, Any]:
    """`512`: 512 keys, its own among them; `511:0`: 511 before and none after, -1 for all."""
    left, colon, right = (value or "").partition(":")
    if colon:
        return {"window": (_value(name, left, int, UNLIMITED), _value(name, right, int, UNLIMITED))}
    return {"num_keys": _value(name, value, int, 1)}


def _head_sizes(name: str, value: str | None) -> dict[str, Any]:
    return {"head_sizes": tuple(_value(name, each, int, 1) for each in (value or "").split("/"))}


_WORDS: dict[str, Callable[[str, str | None], dict[str, Any]]] = {
    "causal": _flag(is_causal=True),
    "full": _flag(),
    "window": _window,
    "gqa": _number("ratio", int, 1),
    "heads": _number("heads", int, 1),
    "head_dim": _head_sizes,
    "value_dim": _number("value_size", int, 1),
    "scale": _positive("scale"),
    "softcap": _positive("softcap"),
    "sinks": _flag(has_sinks=True),
    "alibi": _flag(has_alibi=True),
    "mask": _flag(has_mask=True),
    "top_left": _flag(align="top_left"),
    "bottom_right": _flag(align="bottom_right"),
    "square": _flag(is_square=True),
    "forward_only": _flag(is_forward_only=True),
    "builtin": _flag(is_built_in=True),
    "block": _number("block", int, 1),
    "topk": _number("num_blocks", int, 1),
}
_ALIKE = {"bidirectional": "full"}  # as modules are declared
_SEMANTIC = ("causal", "full", "window", "mask", "topk")
