"""A few lines of source around the place of a finding, read when they can still be the ones it is about."""

import ast
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nsa_doctor.core.measurement import Place
from nsa_doctor.render.repository_paths import line_of

_AROUND = 4
_MOST_BYTES = 2**20
_LONGEST_LINE = 240
_TAB = 4


@dataclass(frozen=True)
class SourceLine:
    """One line, `indent` columns further in than the leftmost; `is_named` marks the one the finding names."""

    number: int
    indent: int
    text: str
    is_named: bool


@dataclass(frozen=True)
class Source:
    """A Python file's lines and the functions in it: (name, first line, last line)."""

    lines: tuple[str, ...]
    functions: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Sources:
    """The files below a repository, each read once."""

    repository: str
    _read: dict[str, Source | None] = field(default_factory=dict)

    def excerpt(self, place: Place) -> tuple[SourceLine, ...]:
        """The lines around a place; none where the file cannot be read here or has changed since."""
        number = line_of(place)
        if not number or not place.file.endswith(".py"):
            return ()
        path = os.path.join(self.repository, place.file)
        if path not in self._read:
            self._read[path] = _source(path)
        source = self._read[path]
        if source is None or (bounds := _bounds(source, place.function, number)) is None:
            return ()
        first, last = max(bounds[0], number - _AROUND), min(bounds[1], number + _AROUND)
        rows = [(each, source.lines[each - 1].expandtabs(_TAB)) for each in range(first, last + 1)]
        left = min((len(row) - len(row.lstrip()) for _, row in rows if row.strip()), default=0)
        return tuple(
            SourceLine(each, max(0, len(row) - len(row.lstrip()) - left), row.strip()[:_LONGEST_LINE], each == number)
            for each, row in rows
        )


def _bounds(source: Source, function: str, number: int) -> tuple[int, int] | None:
    """First and last line of the innermost function of that name around a line; None where there is none."""
    name = function.rpartition(".")[2]
    if not name.isidentifier():  # <module>, <lambda>, or nothing
        return (1, len(source.lines)) if number <= len(source.lines) else None
    around = [(first, last) for known, first, last in source.functions if known == name and first <= number <= last]
    return max(around, default=None)


def _source(path: str) -> Source | None:
    """A regular file of Python of moderate size; a pipe or a device is not waited for."""
    try:
        if not Path(path).is_file():
            return None
        with open(path, "rb", opener=_without_waiting) as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    if len(content) > _MOST_BYTES:
        return None
    try:
        text = content.decode("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, filename=Path(path).name)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return Source(tuple(text.split("\n")), tuple(_functions(tree)))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min((each.lineno for each in node.decorator_list), default=node.lineno)
            yield node.name, first, node.end_lineno or node.lineno
