"""What every picture is drawn on: matplotlib without its state, and SVG that a page can hold as part of itself."""

import io
import logging
import re
import xml.etree.ElementTree as ET  # only what matplotlib has just written is parsed
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from nsa_doctor.core.text import escaped
from nsa_doctor.render.html_text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page's colours by their variables; matplotlib is given numbers that stand for them.
_VARIABLES = (
    "ink", "soft", "rule", "fine", "bad", "worse", "halt", "idle", "on-fine", "on-bad", "on-worse", "on-halt",
    "on-idle", "one", "two", "three", "four",
)  # fmt: skip
_STANDS_FOR = {f"#0000{number:02x}": name for number, name in enumerate(_VARIABLES, start=1)}
PAINT: Mapping[str, str] = {name: colour for colour, name in _STANDS_FOR.items()}
TEXT = 12.0
SMALL = 11.0
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_FONT = re.compile(r"font-family: [^;]*;? ?")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONGEST_LABEL = 28
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "path.simplify": False,
    "hatch.linewidth": 1.0,
    "axes.unicode_minus": False,
}


@contextmanager
def paper(width: float, height: float) -> "Iterator[Figure]":
    """A figure of so many pixels without anything on it; text in it is text, never mathematics."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells of a home it cannot write to, and of fonts it has not found
    try:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_SETTINGS)
            figure = Figure(figsize=(width / 72, height / 72), dpi=72, frameon=False)
            yield figure
    finally:
        logger.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A picture to be: `name` tells its parts from those of others, `label` and `description` say what it shows.

    `hints` are what a reader sees who points at a part, by the name that was given to it with `set_gid`.
    """

    name: str
    width: float
    height: float
    label: str
    description: str = ""
    kind: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)


def drawn(sheet: Sheet, draw: "Callable[[Figure], None]") -> Markup:
    """The SVG of what `draw` puts on paper."""
    with paper(sheet.width, sheet.height) as figure:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        matplotlib.rcParams["svg.hashsalt"] = sheet.name
        draw(figure)
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ET.fromstring(text.getvalue())  # noqa: S314
    return _as_part_of_a_page(root, sheet)


def axes(figure: "Figure", box: tuple[float, float, float, float]) -> "Axes":
    """Axes at (left, top, width, height) in pixels, with a rule below and faint lines across."""
    width, height = figure.get_size_inches() * 72
    left, top, wide, high = box
    own = figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
    own.patch.set_visible(False)
    for side, spine in own.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(PAINT["rule"])
    own.grid(axis="y", color=PAINT["rule"], linewidth=0.7, alpha=0.6)
    own.set_axisbelow(True)
    own.tick_params(axis="both", which="both", length=0, labelsize=SMALL, labelcolor=PAINT["soft"], pad=5)
    own.minorticks_off()
    return own


def words(target: Any, x: float, y: float, text: str, **style: Any) -> None:
    """Text that is not taken for mathematics, in a size and a colour of the page."""
    style = {"color": PAINT["ink"], "fontsize": TEXT, "rotation_mode": "anchor", **style}
    target.text(x, y, label_text(text), parse_math=False, **style)


def label_text(text: str, longest: int = _LONGEST_LABEL) -> str:
    """A short label of signs that every font has; of a long one the beginning and the end."""
    shown = "".join(sign if ord(sign) < 0x180 or sign in "–…×∞≤≥" else f"\\u{ord(sign):04x}" for sign in escaped(text))
    if len(shown) <= longest:
        return shown
    kept = longest - 1
    return f"{shown[: kept // 2]}…{shown[len(shown) - (kept - kept // 2) :]}"


def _as_part_of_a_page(root: ET.Element, sheet: Sheet) -> Markup:
    """Without what belongs to a file of its own, with the page's colours, and no name in it used twice."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    used = {found for each in root.iter() for found in _references(each)}
    for each in list(root.iter()):
        each.tag = each.tag.removeprefix(_SVG)
        hint = sheet.hints.get(each.get("id", ""))
        for key, value in list(each.attrib.items()):
            del each.attrib[key]
            if key == "id" and value in used:
                each.set("id", f"{sheet.name}-{value}")
            elif key == _LINK:
                each.set("href", f"#{sheet.name}-{value.removeprefix('#')}")
            elif key != "id":
                each.set(key, _painted(_REFERENCE.sub(rf"url(#{sheet.name}-\1)", value)))
        if hint:
            _insert(each, "title", hint)
    _strip_space(root)
    root.attrib.clear()
    root.attrib.update({
        "class": f"picture {sheet.kind}".strip(),
        "viewBox": f"0 0 {sheet.width:g} {sheet.height:g}",
        "style": f"max-width: {sheet.width:g}px",
        "role": "img",
        "aria-label": visible(sheet.label),
    })  # fmt: skip
    if sheet.description:
        root.set("aria-describedby", f"{sheet.name}-description")
        _insert(root, "desc", sheet.description).set("id", f"{sheet.name}-description")
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 (the tree quotes what is in it)


def _insert(parent: ET.Element, tag: str, text: str) -> ET.Element:
    child = ET.Element(tag)
    child.text = visible(text)
    parent.insert(0, child)
    return child


def _references(element: ET.Element) -> Iterator[str]:
    for key, value in element.attrib.items():
        if key == _LINK:
            yield value.removeprefix("#")
        yield from _REFERENCE.findall(value)


def _painted(value: str) -> str:
    """A style or a path with variables for colours, in the page's font, to a hundredth of a pixel."""
    shorter = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), _FONT.sub("", value))
    return _COLOUR.sub(lambda found: f"var(--{_STANDS_FOR[found[0]]})", shorter).replace("\n", "")


def _strip_space(root: ET.Element) -> None:
    for each in root.iter():
        if each.tag != "text" and each.text and not each.text.strip():
            each.text = None
        if each.tail and not each.tail.strip():
            each.tail = None
