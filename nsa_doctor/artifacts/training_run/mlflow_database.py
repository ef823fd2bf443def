"""MLflow's database of runs, `mlflow.db`, as far as metrics need it; opened to read alone, by SQLite.

A run in it is named as a file below it would be: `mlflow.db/<run id>`.
"""

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.store_error import StoreError

SUFFIXES = (".db", ".sqlite", ".sqlite3")
_TABLES = frozenset({"metrics", "latest_metrics", "runs"})
_MOST_RUNS, _MOST_SECONDS, _SECONDS_TO_WAIT = 64, 20.0, 2.0
_STEPS_BETWEEN_LOOKS = 10_000  # of SQLite's machine, at the clock
_INFINITE = 1.7976931348623157e308  # as MLflow stores an infinity
_RUNS = """
    SELECT runs.run_uuid, MAX(latest_metrics.timestamp) AS newest FROM runs
    JOIN latest_metrics ON latest_metrics.run_uuid = runs.run_uuid
    WHERE runs.lifecycle_stage IS NOT 'deleted' GROUP BY runs.run_uuid ORDER BY newest DESC LIMIT ?
"""
_VALUES = "SELECT key, step, value, is_nan, timestamp FROM metrics WHERE run_uuid = ? ORDER BY timestamp LIMIT ?"


def is_database(place: Path) -> bool:
    """Whether a file is called as one."""
    return place.suffix.lower() in SUFFIXES and place.is_file()


def runs_in(database: Path) -> list[tuple[Path, float]]:
    """Each run that has metrics and is not deleted, with the seconds of its last value, the latest first."""
    rows = _selected(database, _RUNS, (_MOST_RUNS,))
    return [(database / name, newest / 1000) for name, newest in rows if _is_name(name) and isinstance(newest, int)]


def values_in(run: Path, most: int) -> Iterator[tuple[str, int, float, float]]:
    """Name, step, value and seconds of all metrics of a run, but for those of the machine."""
    for name, step, value, is_nan, stamp in _selected(run.parent, _VALUES, (run.name, most)):
        is_whole = all(isinstance(each, int) for each in (step, stamp))
        if is_whole and isinstance(name, str) and isinstance(value, (int, float)) and not name.startswith("system/"):
            yield name, step, math.nan if is_nan else _with_infinities(float(value)), stamp / 1000


def _selected(database: Path, query: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    end = time.monotonic() + _MOST_SECONDS
    address = f"{database.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_SECONDS_TO_WAIT)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)
            connection.execute("PRAGMA trusted_schema = OFF")
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if missing := sorted(_TABLES - {name for (name,) in found}):
                raise StoreError(f"is a database without MLflow's tables: {', '.join(missing)}")
            return connection.execute(query, arguments).fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"is no database of MLflow that can be read: {error}") from None


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"}.intersection(name)


def _with_infinities(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _INFINITE else value
