"""Text of untrusted origin as a page shows it: as it is, and without effect on what stands beside it."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from nsa_doctor.core.text import escaped
from nsa_doctor.render.summary import scalar

_LONGEST, _LONGEST_NAME = 1200, 160
_MOST_LINES = 200
_MOST_MARKS = 3
_MOST_ITEMS = 60
_RIGHT_TO_LEFT = {"R", "AL", "AN"}
_SEPARATOR = re.compile(r"[/\\.:](?=[^/\\.:])")
_PLAIN_WORD = re.compile(r"[a-z]+(?=[ ,;])")
_FIRST_STRONG, _POP = "\u2068", "\u2069"  # what stands between is laid out on its own


def finished(value: Any) -> Markup | str:
    """What a template's `{{ value }}` becomes: text that is visible and inert, in an element or an attribute."""
    if isinstance(value, Markup):
        return value
    return escape(visible(value if isinstance(value, str) else scalar(value)))


def visible(text: str) -> str:
    """On one line, not endless, with what would move or hide its neighbours spelt out."""
    return _isolated(_tamed(escaped(_shortened(text))))


def lines(text: str) -> Markup:
    """Text of several lines for a `<pre>`."""
    rows = text.splitlines()
    more = [f"... and {len(rows) - _MOST_LINES} more lines"] if len(rows) > _MOST_LINES else []
    return Markup("\n").join(escape(visible(row)) for row in (*rows[:_MOST_LINES], *more))


def whole(text: str) -> Markup:
    """Text of bounded length for a `<pre>` that is copied: nothing of it is left out."""
    return Markup("\n").join(escape(_isolated(_tamed(escaped(row)))) for row in text.splitlines())


def short(text: str) -> str:
    """As much of it as a headline has room for."""
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"


def breakable(text: str) -> Markup:
    """A path or a dotted name, which may go on in the next line behind its separators."""
    return Markup(_SEPARATOR.sub(r"\g<0><wbr>", str(escape(visible(text)))))  # noqa: S704 (escaped, and a tag of ours)


def prose(text: str) -> Markup:
    """Sentences of a manual: they begin with a capital, and what stands in backquotes is code."""
    shown = visible(text)
    shown = f"{shown[0].upper()}{shown[1:]}" if _PLAIN_WORD.match(shown) else shown
    parts = [escape(part) for part in shown.split("`")]
    if len(parts) % 2 == 0:
        return escape(shown)
    return Markup().join(Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts))


def command_words(line: str) -> Markup:
    """A command line whose words stay whole as long as they fit."""
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in visible(line).split(" "))


def facts(record: Mapping[str, Any], *left_out: str) -> Iterator[tuple[str, str]]:
    """(name, text) for what a record says, in its order; nothing for what it leaves empty."""
    for key, value in list(record.items())[:_MOST_ITEMS]:
        if key not in left_out and value not in ("", None, (), [], {}):
            yield key.replace("_", " "), plain(value)


def plain(value: Any) -> str:
    """Any JSON on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={plain(item)}" for key, item in list(value.items())[:_MOST_ITEMS])
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value[:_MOST_ITEMS])) + (", ..." if len(value) > _MOST_ITEMS else "")
    return scalar(value) if isinstance(value, (str, int, float)) or value is None else json.dumps(value, default=str)


def at_most(items: Sequence[Any], count: int) -> tuple[Sequence[Any], int]:
    """The first of them, and how many are left out."""
    return items[:count], max(0, len(items) - count)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text) - _LONGEST} more characters)"


def _tamed(text: str) -> str:
    """Signs that stand on the one before them, no more than a few on each: a tower of them covers other lines."""
    if text.isascii():
        return text
    shown, height = [], 0
    for sign in text:
        height = height + 1 if unicodedata.category(sign) in ("Mn", "Me") else 0
        if height <= _MOST_MARKS:
            shown.append(sign)
        elif height == _MOST_MARKS + 1:
            shown.append("…")
    return "".join(shown)


def _isolated(text: str) -> str:
    """With the order of its signs kept to itself, where some run from right to left."""
    if text.isascii() or not any(unicodedata.bidirectional(sign) in _RIGHT_TO_LEFT for sign in text):
        return text
    return f"{_FIRST_STRONG}{text}{_POP}"
