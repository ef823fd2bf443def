"""Names of functions and modes that say of two of them that one undoes the other."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_UNDOING = ("inverse", "inv", "invert", "undo", "revert")
_PREFIXES = ("un", "de", "dis")
_NORMS = {"normalize": "norm", "normalise": "norm", "normalization": "norm", "normalized": "norm", "norm": "norm"}
_STANDARDS = {"standardize": "standard", "standardise": "standard"}
_OTHERS = {"scale": "scale", "center": "center", "centre": "center", "shift": "shift", "whiten": "whiten"}
_ARITHMETIC = {**_NORMS, **_STANDARDS, **_OTHERS, "transform": "transform", "rotate": "rotate"}
_SPLITTING = frozenset(("split", "partition", "separate", "divide", "chunk"))
_JOINING = frozenset(
    {
        *("merge", "combine", "join", "recombine", "rejoin", "unsplit", "unpartition", "unchunk", "concat"),
        *("concatenate",),
    }
)
_FRAMING = frozenset(("segment", "frame", "split", "chunk", "window", "unfold", "block"))
OVERLAPPING = ("overlap", "add")  # what a role is about where frames that overlap are added up
_GIVING_BACK = frozenset(("reverse", "restore"))
# What loses something by design, or whose un- is something else; a fold of an unfold adds up what overlaps.
_OTHER_UNS = frozenset(
    {
        *("fold", "code", "quantize", "quantise", "compress", "noise", "noised", "blur", "mask", "embed"),
        *("tokenize", "token", "pool", "sample", "pend", "tach", "lay", "grade", "crease", "conv", "fault"),
        *("scribe", "tail", "vice", "lete", "fine", "bug", "pth", "projector", "projection", "queeze", "bias"),
        *("weight", "freeze", "used", "known", "iform", "it", "ion", "ique"),
    }
)
_MODES = {"n": "norm", "d": "denorm"}
_NORMALIZERS = re.compile(r"normali[sz]er|scaler|standardi[sz]er", re.IGNORECASE)


@dataclass(frozen=True)
class Role:
    """One side of a pair: what both are about, and whether it is the side that undoes; `adds` where both may compute.

    Where not, both only lay values out.
    """

    about: tuple[str, ...]
    undoes: bool
    adds: bool = False


def roles_of(name: str, holder: str = "") -> frozenset[Role]:
    """What pairs a function of that name may belong to; `holder` is the name of its class."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or len(words) > 6:
        return frozenset()
    if words in (["forward"], ["inverse"]):
        return frozenset({Role(("forward",), words == ["inverse"], adds=True)})
    if words in (["encode"], ["decode"]):
        return frozenset({Role(("code",), words == ["decode"], adds=True)} if _NORMALIZERS.search(holder) else ())
    return frozenset(_roles(words))


def roles_of_mode(text: str) -> frozenset[Role]:
    """What pairs a mode of that name may belong to, which a function is given as a text."""
    if text in ("forward", "inverse"):
        return frozenset({Role(("norm",), text == "inverse", adds=True)})
    return frozenset(role for role in roles_of(_MODES.get(text, text)) if role.adds)


def _roles(words: list[str]) -> Iterator[Role]:
    if "overlap" in words and {"add", "adds", "added", "sum", "merge"} & set(words):
        yield Role(OVERLAPPING, True)
    elif _FRAMING & {word.rstrip("s") for word in words}:
        yield Role(OVERLAPPING, False)
    for at, word in enumerate(words):
        rest = [*words[:at], *words[at + 1 :]]
        about = tuple(sorted(each.rstrip("s") for each in rest))
        if word in _ARITHMETIC:
            yield Role((_ARITHMETIC[word], *about), False, adds=True)
        if word in _SPLITTING:
            yield Role(("split", *about), False)
        if word in _JOINING or (word in _GIVING_BACK and rest):
            yield Role(("split", *about), True)
        if word == "restore" and len(rest) <= 1:
            yield Role(("norm", *about), True, adds=True)
        yield from _undone(word, about)
        if word in (*_UNDOING, "reverse") and rest:
            yield from _plain(rest, undoes=True)
        if word in ("to", "2"):
            yield from _directed(words, at)
    if words[0] == "from" and len(words) > 1:
        yield Role(("to", *words[1:]), True)
    yield from _plain(words, undoes=False)


def _undone(word: str, about: tuple[str, ...]) -> Iterator[Role]:
    for prefix in _PREFIXES:
        stem = word.removeprefix(prefix)
        if stem in (word, "") or len(stem) < 3 or stem in _OTHER_UNS:
            continue
        if stem in _ARITHMETIC:
            yield Role((_ARITHMETIC[stem], *about), True, adds=True)
        yield Role(tuple(sorted((stem.rstrip("s"), *about))), True)
    if word in ("un", "de") and len(about) == 1:
        yield Role((_ARITHMETIC.get(about[0], about[0]),), True, adds=about[0] in _ARITHMETIC)


def _plain(words: list[str], *, undoes: bool) -> Iterator[Role]:
    """The words themselves, which an un- before one of them undoes."""
    yield Role(tuple(sorted(word.rstrip("s") for word in words)), undoes)
    for at, word in enumerate(words):
        if undoes and word in _ARITHMETIC:
            rest = sorted(each.rstrip("s") for each in (*words[:at], *words[at + 1 :]))
            yield Role((_ARITHMETIC[word], *rest), True, adds=True)


def _directed(words: list[str], at: int) -> Iterator[Role]:
    """`a_to_b` and `b_to_a`; `to_a`, which `from_a` undoes."""
    one, other = "_".join(words[:at]).rstrip("s"), "_".join(words[at + 1 :]).rstrip("s")
    if one and other and one != other:
        yield Role(("to", *sorted((one, other))), one > other)
    elif other:
        yield Role(("to", *words[at + 1 :]), False)
