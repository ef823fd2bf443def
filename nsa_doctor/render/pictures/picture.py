"""One picture of a report with the words around it, and its numbers as a table for who does not see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from nsa_doctor.render.html_text import at_most

_MOST_ROWS = 400


@dataclass(frozen=True)
class Panel:
    """One drawing and what stands above it; of several `kind`s that show the same, the page shows the one that fits."""

    svg: Markup
    heading: str = ""


@dataclass(frozen=True)
class Key:
    """One sign of a picture: its class on the page, the letter in it, and what it means."""

    kind: str
    letter: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """Numbers in words; `left_out` rows are not among them."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A section of the page: `name` is its anchor, `short` its name among others, `sentences` stand below its title."""

    name: str
    title: str
    short: str
    sentences: tuple[str, ...]
    panels: tuple[Panel, ...]
    table: Table
    legend: tuple[Key, ...] = ()
    shares: tuple[tuple[str, float], ...] = field(default=())


def tabled(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """The rows that a page has room for."""
    shown, left_out = at_most(rows, _MOST_ROWS)
    return Table(heading, tuple(shown), left_out)
