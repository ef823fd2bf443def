"""Finds the cases of every package that offers some, and reads what they say without importing them."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from nsa_doctor.core.own_cases import OWN_CASES

ENTRY_POINTS = "nsa_doctor.regressions"
_OWN_DISTRIBUTION = "nsa-doctor"
PARTS = ("Reported", "Symptom", "Cause", "Check")
_NAME_OF_A_CASE = re.compile(r"(?P<id>r\d{3})_[a-z0-9_]+")
_TITLE = re.compile(r"(?P<id>r\d{3}) (?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)")
_PART = re.compile(r"^(?P<part>[A-Z][a-z]+): (?P<text>.+?)(?=^[A-Z][a-z]+: |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a case's docstring says, and where it stands."""

    id: str
    name: str
    reported: str
    symptom: str
    cause: str
    check: str
    module: str
    path: Path


def cards() -> dict[str, Card]:
    """Every case by its id, ascending; raises ValueError for a docstring that is not one, or an id used twice."""
    found: dict[str, Card] = {}
    for module, path in _files():
        card = read_card(module, path)
        if card.id in found:
            raise ValueError(f"{path.name}: the id {card.id} is used twice")
        found[card.id] = card
    return dict(sorted(found.items()))


def read_card(module: str, path: Path) -> Card:
    """The docstring of one file; raises ValueError that says what is missing."""
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    title = _TITLE.fullmatch(lines[0].strip()) if lines else None
    if title is None:
        raise ValueError(f"{path.name}: its docstring must start with 'r000 some-name'")
    if path.stem != f"{title['id']}_{title['name'].replace('-', '_')}":
        raise ValueError(f"{path.name}: must be called as its docstring's first line, {title[0]!r}")
    parts = {each["part"]: " ".join(each["text"].split()) for each in _PART.finditer("\n".join(lines[1:]))}
    if tuple(parts) != PARTS or not all(parts.values()):
        raise ValueError(f"{path.name}: its docstring must have {', '.join(PARTS)}, in this order")
    texts = {name.lower(): text for name, text in parts.items()}
    return Card(id=title["id"], name=title["name"], module=module, path=path, **texts)


def folders() -> list[Path]:
    """Where cases stand: the folders of all packages that offer some."""
    return [place for package in _packages() for place in _places(package)]


def _files() -> Iterator[tuple[str, Path]]:
    for package in _packages():
        for place in _places(package):
            for path in sorted(place.glob("*.py")):
                if _NAME_OF_A_CASE.fullmatch(path.stem):
                    yield f"{package}.{path.stem}", path


def _packages() -> list[str]:
    """Ours, and those of other distributions: an installation of the doctor may be older than its checkout."""
    points = entry_points(group=ENTRY_POINTS)
    others = {point.value for point in points if point.dist is None or point.dist.name != _OWN_DISTRIBUTION}
    return sorted({OWN_CASES, *others})


def _places(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
