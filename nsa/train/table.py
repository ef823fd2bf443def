"""CSV files with a row for a step: appended line by line, and cut back where a run resumes."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsa.train.files import Lines, write_whole, writing


class Table:
    """Rows whose first column is the step; rows after `last_step` are from a future that was lost, and are removed.

    Numbers are written with all their digits, so that equal runs have equal files.
    """

    def __init__(self, path: Path, columns: Sequence[str], last_step: int) -> None:
        self._columns = tuple(columns)
        kept = [row for row in read_table(path) if 0 <= _step(row) <= last_step]
        lines = [",".join(self._columns), *(",".join(row.get(name) or "" for name in self._columns) for row in kept)]
        write_whole(path, "".join(f"{line}\n" for line in lines))
        self._lines = Lines(path)

    def add(self, *values: int | float | str) -> None:
        """One row, in the order of the columns."""
        assert len(values) == len(self._columns)
        self._lines.add(",".join(repr(each) if isinstance(each, float) else str(each) for each in values))

    def close(self) -> None:
        """No row follows."""
        self._lines.close()


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows as text by column; none where there is no such file."""
    with writing(path):
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return list(csv.DictReader(line.replace("\0", "") for line in file))


def _step(row: dict[str, Any]) -> int:
    """-1 for a line that was cut short."""
    try:
        return int(row["step"])
    except (KeyError, TypeError, ValueError):
        return -1
