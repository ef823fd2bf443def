"""Text of untrusted origin as GitHub's Markdown shows it: as it is, and without effect."""

import html
import re

from nsa_doctor.core.text import escaped

_LONGEST, _LONGEST_LINE = 500, 4000
_APART = "&#8203;"  # has no width, and no mention, reference, link or picture goes across it
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&]")
_AT_THE_START = re.compile(r"[-+#=]|\d+[.)](?=\s|$)")
_TRIGGER = re.compile(r"(:)(?=//)|(\bwww)(?=\.)|(@)|(#)(?=\d)|(\bGH-)(?=\d)|(:)(?=[\w+-]+:)", re.IGNORECASE)


def text(raw: str) -> str:
    """On one line of Markdown, wherever it begins."""
    shown = _SPECIAL.sub(r"\\\g<0>", _shortened(raw).strip())
    if start := _AT_THE_START.match(shown):
        shown = f"{shown[: start.end() - 1]}\\{shown[start.end() - 1 :]}"
    return _apart(shown)


def prose(raw: str) -> str:
    """Text in which what stands between backticks is code."""
    parts = raw.split("`")
    if len(parts) % 2 == 0:
        return text(raw)
    return "".join(code(part) if index % 2 else _spaced(part) for index, part in enumerate(parts))


def code(raw: str) -> str:
    """A span of code on one line; nothing for nothing."""
    shown = _shortened(raw)
    if not shown.strip():
        return ""
    if re.search(r"[`|\\]", shown):  # what no span can hold in a table
        return f"<code>{_every_sign(shown)}</code>"
    return f"`{shown}`"


def fenced(raw: str, language: str = "") -> str:
    """A block of code; its fence is longer than any in it."""
    lines = [_shortened(line, _LONGEST_LINE) for line in raw.splitlines()]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def inside_html(raw: str) -> str:
    """Between two tags."""
    return _apart(html.escape(_shortened(raw)))


def _shortened(raw: str, longest: int = _LONGEST) -> str:
    shown = escaped(raw[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


def _apart(shown: str) -> str:
    return _TRIGGER.sub(rf"\g<0>{_APART}", shown).replace("$", "&#36;")


def _spaced(part: str) -> str:
    """A part of a sentence, with the spaces at its ends."""
    return f"{part[: len(part) - len(part.lstrip())]}{text(part)}{part[len(part.rstrip()) :]}" if part.strip() else part


def _every_sign(shown: str) -> str:
    """Each sign that Markdown or HTML could obey as a character reference."""
    apart = _TRIGGER.sub(rf"\g<0>{html.unescape(_APART)}", shown)
    return "".join(sign if sign.isalnum() or sign in " /.,-()" else f"&#{ord(sign)};" for sign in apart)
