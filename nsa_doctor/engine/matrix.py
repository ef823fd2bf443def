"""Measures a matrix of models and properties in child processes, cell by cell, and goes on where one was left."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsa_doctor.core.conformance import PROPERTY_NAMES, Cell
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import ExitCode
from nsa_doctor.isolation.worker_process import STARTUP_SECONDS, WorkerProcess

_ROOM = "nsa_doctor.worker.matrix_warm"
CELLS = "cells.jsonl"
_SPARE_SECONDS = 60.0

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class MatrixRequest:
    """Which types (all where there are none) and properties, which of how many shards, and what one cell may take.

    Cells are written to `folder` as they come; those that lie there already are not measured again.
    """

    types: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)
    folder: Path
    jobs: int = 1
    seconds: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Cells in the order of types and properties, and the versions that they were measured with."""

    types: tuple[str, ...]
    properties: tuple[str, ...]
    versions: Mapping[str, str]
    cells: tuple[Cell, ...] = field(default_factory=tuple)

    def cell(self, model_type: str, name: str) -> Cell | None:
        """One cell; None where it was not measured."""
        return next(
            (each for each in self.cells if each.model == f"hf:{model_type}" and each.property_name == name), None
        )

    @property
    def red(self) -> tuple[Cell, ...]:
        """The cells in which something is wrong."""
        return tuple(cell for cell in self.cells if cell.is_red)

    @property
    def exit_code(self) -> ExitCode:
        """WRONG where a cell is red, UNMEASURED where nothing was measured at all."""
        if self.red:
            return ExitCode.WRONG
        is_measured = any(cell.status in ("holds", "refuses") for cell in self.cells)
        return ExitCode.WELL if is_measured else ExitCode.UNMEASURED

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        named = {"types": self.types, "properties": self.properties, "versions": dict(self.versions)}
        return {**named, "cells": [cell.to_json() for cell in self.cells]}


def run_matrix(request: MatrixRequest, listen: Listener) -> Matrix:
    """The matrix; raises UsageError for types and properties that do not exist and for cells of other versions."""
    properties = _properties(request.properties)
    with WorkerProcess(_ROOM, is_fresh=True) as process:
        timing = {"startup_seconds": STARTUP_SECONDS, "making_seconds": STARTUP_SECONDS}
        there = process.ask({"do": "list", "types": list(request.types), **timing}, STARTUP_SECONDS)
        number, count = request.shard
        types = tuple(there["types"][number - 1 :: count])
        journal = Journal(request.folder / CELLS, there["versions"])
        missing = _missing(types, properties, journal.cells)
        total = sum(len(each) for _, each in missing)

        def hear(event: Mapping[str, Any]) -> None:
            if event["event"] == "cell":
                cell = Cell.from_json(event["cell"])
                journal.add(cell)
                listen(f"{cell.model} {cell.property_name}: {cell.status}", total - journal.remaining(missing), total)

        asked = {"do": "measure", "cells": missing, "jobs": request.jobs, "seconds": request.seconds, **timing}
        if missing:
            process.ask(asked, len(properties) * request.seconds + _SPARE_SECONDS, listen=hear)
    wanted = {(f"hf:{each}", name): None for each in types for name in properties}
    cells = tuple(journal.cells[key] for key in wanted if key in journal.cells)
    return Matrix(types=types, properties=properties, versions=there["versions"], cells=cells)


class Journal:
    """Cells in a file, one a line, below a line that says with which versions they were measured."""

    def __init__(self, path: Path, versions: Mapping[str, str]) -> None:
        self.path = path
        self.cells: dict[tuple[str, str], Cell] = {}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"versions": dict(versions)}) + "\n", encoding="utf-8")
            return
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        before = json.loads(first)["versions"]
        if before != dict(versions):
            raise UsageError(
                f"{path} holds cells of {_named(before)}, and {_named(versions)} is installed; use another"
            )
        for line in lines:
            if line.endswith("}"):  # not one that was cut off
                cell = Cell.from_json(json.loads(line))
                self.cells[cell.model, cell.property_name] = cell

    def add(self, cell: Cell) -> None:
        """Keep a cell, in the file first."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell.to_json()) + "\n")
        self.cells[cell.model, cell.property_name] = cell

    def remaining(self, asked: Sequence[tuple[str, list[str]]]) -> int:
        """How many of the cells asked for are not there yet."""
        return sum((f"hf:{name}", each) not in self.cells for name, properties in asked for each in properties)


def _properties(words: Sequence[str]) -> tuple[str, ...]:
    for each in words:
        if each not in PROPERTY_NAMES:
            raise UsageError(f"--properties must be some of {', '.join(PROPERTY_NAMES)}, got {each!r}")
    return tuple(words) or PROPERTY_NAMES


def _missing(
    types: Sequence[str], properties: Sequence[str], there: Mapping[tuple[str, str], Cell]
) -> list[tuple[str, list[str]]]:
    rest = [(each, [name for name in properties if (f"hf:{each}", name) not in there]) for each in types]
    return [(each, names) for each, names in rest if names]


def _named(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
