"""Runs that trackers have stored, as rows of one step each: MLflow's file store, TensorBoard's events, wandb offline.

TensorBoard's are read by its own reader, where that is installed.
"""

import importlib
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.columns import SYNONYMS, normal
from nsa_doctor.artifacts.training_run.wandb_file import history
from nsa_doctor.core.errors import Caught, attempt

Row = dict[str, Any]
_EVENTS = "*.tfevents.*"
_OFFLINE = ".wandb"
_LARGEST, _MOST_FILES, _MOST_VALUES, _DEEPEST = 256 << 20, 2000, 2_000_000, 6
_SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
_PLACES = {  # globs below a folder that may be a run's, or hold several
    "mlflow": ("", "*", "*/*", "mlruns/*/*", "mlartifacts/*/*"),
    "events": ("", "tensorboard", "runs", "runs/*", "logs", "logs/*", "tb_logs/*/*", "lightning_logs/version_*", "*"),
    "wandb": ("", "wandb/latest-run", "wandb/offline-run-*", "wandb/run-*", "latest-run", "offline-run-*", "run-*"),
}
_NAMED = {"events": _EVENTS, "wandb": f"*{_OFFLINE}"}


class StoreError(ValueError):
    """A store that cannot be read; one sentence says why and what would help."""


def is_store(place: Path) -> bool:
    """Whether a tracker has stored a run under this name: a run's folder of MLflow, a file of events or of wandb's."""
    if place.is_dir():
        return (place / "meta.yaml").is_file() and (place / "metrics").is_dir()
    return place.is_file() and (".tfevents." in place.name or place.suffix == _OFFLINE)


def stores_below(folder: Path) -> Iterator[Path]:
    """Those in a run's folder, or in one of several runs, the newest of each kind first."""
    for kind, globs in _PLACES.items():
        places = (each for glob in globs for each in (folder.glob(glob) if glob else [folder]) if each.is_dir())
        named = _NAMED.get(kind)
        inner = (next(iter(sorted(place.glob(named))), place) if named else place for place in places)
        stores = {each.resolve(): each for each in islice(inner, _MOST_FILES) if is_store(each)}
        yield from sorted(stores.values(), key=lambda each: each.stat().st_mtime, reverse=True)


def signature(place: Path) -> tuple[int, int]:
    """How much there is and when it was written last: what has not changed is not read again."""
    facts = [each.stat() for each in _files(place)]
    return sum(each.st_size for each in facts), max((each.st_mtime_ns for each in facts), default=0)


def rows_of(place: Path) -> list[Row]:
    """What was stored, a row for each step that something was stored of; raises StoreError."""
    if sum(each.stat().st_size for each in _files(place)) > _LARGEST:
        raise StoreError(f"is larger than {_LARGEST >> 20} MiB and was not read")
    read = _mlflow if place.is_dir() else _wandb if place.suffix == _OFFLINE else _events
    found = attempt(lambda: read(place))
    if not isinstance(found, Caught):
        return found
    if isinstance(found.error, (StoreError, KeyboardInterrupt, SystemExit)):
        raise found.error
    raise StoreError(f"cannot be read: {found.sentence}")


def _files(place: Path) -> list[Path]:
    """The files of a store."""
    if place.is_dir():
        inner = (path for path in _below(place / "metrics", 0))
        return list(islice(inner, _MOST_FILES))
    return (
        [place] if place.suffix == _OFFLINE else [each for each in sorted(place.parent.glob(_EVENTS)) if each.is_file()]
    )


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink() and depth < _DEEPEST:
            yield from _below(each, depth + 1)
        elif each.is_file() and not each.is_symlink():
            yield each


def _mlflow(place: Path) -> list[Row]:
    """A file for each metric, by its name; in each line the milliseconds since the epoch, the value, the step."""

    def values() -> Iterator[tuple[str, int, float, float]]:
        for path in _files(place):
            name = path.relative_to(place / "metrics").as_posix()
            if name.startswith("system/"):  # of the machine, by a clock of its own
                continue
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                words = line.split()
                if len(words) >= 3 and words[0].lstrip("-").isdecimal() and words[2].lstrip("-").isdecimal():
                    yield name, int(words[2][:18]), _number(words[1]), int(words[0][:18]) / 1000

    return _by_step(values())


def _number(text: str) -> float:
    found = attempt(lambda: float(text))
    return math.nan if isinstance(found, Caught) else found


def _events(place: Path) -> list[Row]:
    loader = _module("backend.event_processing.event_file_loader")
    tensors = _module("util.tensor_util")

    def values() -> Iterator[tuple[str, int, float, float]]:
        for path in _files(place):
            for event in loader.EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.WhichOneof("value") == "tensor" and not value.tensor.tensor_shape.dim:
                        yield value.tag, event.step, float(tensors.make_ndarray(value.tensor)), event.wall_time

    return _by_step(values())


def _wandb(place: Path) -> list[Row]:
    """The history of an offline run, whose rows are made by each call of `wandb.log`."""
    rows = islice(history(place.read_bytes()), _MOST_VALUES)
    return [part for row in rows for part in _apart(_of_wandb(row))]


def _of_wandb(row: Row) -> Row:
    """Its own counter counts calls, and gives way to a step that was logged."""
    own = {name: row.pop(name, None) for name in ("_step", "_timestamp", "_runtime")}
    plain = {name: value for name, value in row.items() if isinstance(value, (int, float, str))}
    has_step = any(normal(name) in SYNONYMS["step"] for name in plain)
    return {**plain, **({} if has_step else {"step": own["_step"]}), "timestamp": own["_timestamp"]}


def _by_step(values: Iterable[tuple[str, int, float, float]]) -> list[Row]:
    """Rows of (name, step, value, seconds): a step that a resumed run has made again is a row of its own."""
    times: dict[tuple[str, int], int] = {}
    rows: dict[tuple[int, int], Row] = {}
    for name, step, value, seconds in islice(values, _MOST_VALUES):
        made = times[name, step] = times.get((name, step), -1) + 1
        row = rows.setdefault((step, made), {"step": step, "timestamp": seconds})
        row[name] = value
        row["timestamp"] = min(row["timestamp"], seconds)
    return [
        part for row in sorted(rows.values(), key=lambda row: (row["timestamp"], row["step"])) for part in _apart(row)
    ]


def _apart(row: Row) -> Iterator[Row]:
    """What the Trainer says of the whole run stands apart from its last step."""
    summary = [name for name in row if name.removeprefix("train/") in _SUMMARY]
    if not any(name.removeprefix("train/") == "train_runtime" for name in summary):
        yield row
        return
    own = {name: value for name, value in row.items() if name not in summary}
    yield own
    counters = {name: value for name, value in own.items() if normal(name) in (*SYNONYMS["step"], "timestamp")}
    yield {**counters, **{name.removeprefix("train/"): row[name] for name in summary}}


def _module(name: str) -> Any:
    """A part of TensorBoard's own reader, imported when events are read."""
    found = attempt(lambda: importlib.import_module(f"tensorboard.{name}"))
    if not isinstance(found, Caught):
        return found
    if isinstance(found.error, (KeyboardInterrupt, SystemExit)):
        raise found.error
    raise StoreError("is read by tensorboard, which cannot be imported here: pip install tensorboard")
