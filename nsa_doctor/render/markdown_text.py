"""Text of untrusted origin as GitHub's Markdown shows it: as it is, and without effect."""

import html
import re

from nsa_doctor.wording import escaped

_LONGEST = 2000
_APART = "&#8203;"  # no width, and no mention, reference, link or picture goes across it
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&]")
_AT_THE_START = re.compile(r"^(?:[-+#=:]|\d+[.)])")
_BEFORE = re.compile(r"://|(?<=www)\.|(?<=WWW)\.", re.IGNORECASE)
_BEHIND = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|:(?=[\w+-]+:)", re.IGNORECASE)


def text(raw: str) -> str:
    """On one line of Markdown, wherever it begins."""
    shown = _SPECIAL.sub(r"\\\g<0>", _shortened(escaped(raw)).strip())
    if start := _AT_THE_START.match(shown):
        shown = f"{shown[: start.end() - 1]}\\{shown[start.end() - 1 :]}"
    return _apart(shown).replace("$", "&#36;")


def code(raw: str) -> str:
    """A span of code on one line; nothing for nothing."""
    shown = _shortened(escaped(raw))
    if not shown.strip():
        return ""
    if re.search(r"[`|\\]", shown):  # what no span can hold in a table
        return f"<code>{_every_sign(shown)}</code>"
    return f"`{shown}`"


def fenced(raw: str, language: str = "") -> str:
    """A block of code; its fence is longer than any in it."""
    lines = [_shortened(escaped(line)) for line in raw.splitlines()]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def inside_html(raw: str) -> str:
    """Between two tags."""
    return _apart(html.escape(_shortened(escaped(raw))))


def _shortened(shown: str) -> str:
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def _apart(shown: str) -> str:
    return _BEHIND.sub(lambda found: found[0] + _APART, _BEFORE.sub(lambda found: _parted(found[0]), shown))


def _parted(found: str) -> str:
    return f":{_APART}//" if found == "://" else f"{_APART}."


def _every_sign(shown: str) -> str:
    """Each sign that Markdown or HTML could obey as a character reference."""
    return "".join(sign if sign.isalnum() or sign in " /.,-()" else f"&#{ord(sign)};" for sign in shown)
