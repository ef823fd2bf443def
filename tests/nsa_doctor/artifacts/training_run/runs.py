"""Folders of runs for tests: a loss that falls, lines of heartbeats, and what the doctor says of a folder."""

import json
import math
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.watch import watch, watch_request
from nsa_doctor.core.finding import Report


def falling(count: int, *, start: int = 0, seed: int = 0, noise: float = 0.05) -> list[float]:
    """Losses of steps from `start` on, as a model that learns has them."""
    chance = random.Random(seed)
    return [2.0 + 6.0 * math.exp(-step / 150) + chance.gauss(0, noise) for step in range(start, start + count)]


def beats(count: int, *, ends: float | None = None, rank: int = 0, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """A heartbeat a second, the last of them at `ends`, which is now unless it is given."""
    last = time.time() if ends is None else ends
    losses = enumerate(falling(count, seed=seed))
    return [{"ts": last - count + n, "rank": rank, "step": n, "msg": "train", "loss": x, **more} for n, x in losses]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]], separator: str = ",") -> Path:
    """A header and rows; None is an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [columns, *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    path.write_text("".join(f"{separator.join(line)}\n" for line in lines))
    return path


def watched(place: Path, *maps: str, select: str | None = None, ignore: str | None = None) -> Report:
    """What `nsa-doctor watch` says of it."""
    return watch(watch_request(place=place, maps=maps, select=select, ignore=ignore, every=2.0))


def codes(report: Report) -> list[str]:
    """Of its findings."""
    return [finding.code for finding in report.findings]
