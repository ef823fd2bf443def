"""Reads the folder of a training run: `heartbeat_rank<N>.jsonl` or `training.csv`, `env.json`, dumps, checkpoints.

Lines that are no heartbeat are counted and left out: the last one of a live or a killed run is often cut short. What
the folder holds is data from elsewhere: sizes are limited, and nothing in it is run.
"""

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nsa_doctor.runs.record import Beat, RunRecord

_MOST_BEATS = 1_000_000
_LONGEST_LINE = 65_536
_LARGEST_BEATS = 1 << 30
_LARGEST_FACTS = 4 << 20
_HEARTBEATS = re.compile(r"heartbeat_rank(\d{1,6})\.jsonl")
_CHECKPOINT = re.compile(
    r"((checkpoint|ckpt|step|epoch|model)[-_.]?)+\d[\w-]*(\.(pt|pth|ckpt|safetensors))?|[\w-]+\.(pt|pth|ckpt|safetensors)"
)
_NAMES = {  # of a Beat: what heartbeats and tables call it
    "ts": ("ts", "timestamp", "time"),
    "step": ("step", "iteration", "global_step"),
    "loss": ("loss", "train_loss"),
    "tokens_per_second": ("toks_per_s", "tokens_per_second", "tok_s"),
    "fetch_seconds": ("dt_fetch_s", "fetch_seconds"),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("lr", "learning_rate"),
    "memory": ("gpu_mem_alloc", "memory_bytes", "rss_bytes"),
}


class RunError(ValueError):
    """A folder that holds no run that can be read; one sentence says why."""


def read_run(folder: Path) -> RunRecord:
    """What the folder shows; raises RunError when it is none, or holds nothing that a run writes."""
    try:
        if not folder.is_dir():
            raise RunError(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}; name a run's own")
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise RunError(f"{folder}: cannot be read: {error.strerror}") from None
    notes: list[str] = []
    beats = [beat for name in names if _HEARTBEATS.fullmatch(name) for beat in _heartbeats(folder / name, notes)]
    if not beats and "training.csv" in names:
        beats = list(_table(folder / "training.csv", notes))
    environment = _facts(folder / "env.json", notes) if "env.json" in names else {}
    if not beats and not environment:
        if notes:
            raise RunError(f"{folder}: holds nothing of a run that can be read: {'; '.join(notes)}")
        raise RunError(f"{folder}: holds no heartbeat_rank0.jsonl, no training.csv and no env.json of a run")
    return RunRecord(
        folder=str(folder),
        beats=tuple(beats),
        environment=environment,
        watchdog_dumps=tuple(name for name in names if name.startswith("watchdog_stackdump")),
        checkpoints=tuple(_checkpoints(folder, names)),
        notes=tuple(notes),
    )


def _heartbeats(path: Path, notes: list[str]) -> Iterator[Beat]:
    found = _HEARTBEATS.fullmatch(path.name)
    assert found is not None
    skipped = 0
    for line in _lines(path, notes):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            skipped += 1
            continue
        if isinstance(data, dict):
            yield _beat(data, int(found[1]))
        else:
            skipped += 1
    if skipped:
        counted = "1 line is" if skipped == 1 else f"{skipped} lines are"
        notes.append(f"{path.name}: {counted} no heartbeat and left out")


def _table(path: Path, notes: list[str]) -> Iterator[Beat]:
    try:
        yield from (_beat(row, 0) for row in csv.DictReader(_lines(path, notes)))
    except csv.Error as error:
        notes.append(f"{path.name}: is no table from some line on: {error}")


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    if not path.is_file():
        notes.append(f"{path.name}: is not a regular file and was not read")
        return
    try:
        with path.open("rb") as file:
            for _ in range(_MOST_BEATS):
                line = file.readline(_LONGEST_LINE)
                if not line:
                    return
                if file.tell() > _LARGEST_BEATS:
                    notes.append(f"{path.name}: only the first {_LARGEST_BEATS >> 20} MiB were read")
                    return
                if line.strip():
                    yield line.decode("utf-8", errors="replace")
            notes.append(f"{path.name}: only the first {_MOST_BEATS} lines were read")
    except OSError as error:
        notes.append(f"{path.name}: cannot be read: {error.strerror}")


def _beat(data: Mapping[str, Any], rank: int) -> Beat:
    values = {own: _first_number(data, names) for own, names in _NAMES.items()}
    step = values.pop("step")
    if values["loss"] is None and "loss" in data and _is_a_step(values):
        values["loss"] = math.nan  # null is how many loggers write it
    is_whole = step is not None and math.isfinite(step) and step == int(step) and abs(step) < 2**53
    return Beat(rank=rank, step=int(step) if step is not None and is_whole else None, msg=_text(data), **values)


def _is_a_step(values: Mapping[str, float | None]) -> bool:
    """Whether the line is of a training step, whose loss is missing then, and not of something beside it."""
    return values["tokens_per_second"] is not None or values["grad_norm"] is not None


def _text(data: Mapping[str, Any]) -> str:
    msg = data.get("msg")
    return msg[:200] if isinstance(msg, str) else ""


def _first_number(data: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """The first of these that is a number; JSON's and CSV's NaN and infinities are numbers."""
    for name in names:
        value = data.get(name)
        if isinstance(value, bool) or value is None:
            continue
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return None


def _facts(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_FACTS + 1) if path.is_file() else b""
        found = json.loads(raw) if len(raw) <= _LARGEST_FACTS else None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        notes.append(f"{path.name}: is not a JSON object of at most {_LARGEST_FACTS >> 20} MiB and was not read")
        return {}
    return found


def _checkpoints(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Names of checkpoints in the folder and in its `checkpoints`, the unfinished and the empty ones left out."""
    inner = folder / "checkpoints"
    try:
        deeper = sorted(path.name for path in inner.iterdir()) if inner.is_dir() else []
    except OSError:
        deeper = []
    for name in itertools.chain(names, (f"checkpoints/{name}" for name in deeper)):
        last = name.rpartition("/")[2]
        is_called_one = name != "checkpoints" and _CHECKPOINT.fullmatch(last)
        if is_called_one and not last.endswith(("csv", "json", "tmp")) and not _is_empty(folder / name):
            yield name


def _is_empty(path: Path) -> bool:
    """Whether a save that failed left this: a file of no bytes, or a link to nothing."""
    try:
        return path.stat().st_size == 0 and not path.is_dir()
    except OSError:
        return True
