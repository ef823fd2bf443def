"""Runs that trackers have stored, as rows of one step each: MLflow's, TensorBoard's events, wandb offline.

TensorBoard's are read by its own reader, where that is installed.
"""

import importlib
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.columns import SYNONYMS, normal
from nsa_doctor.artifacts.training_run.mlflow_database import is_database, runs_in, values_in
from nsa_doctor.artifacts.training_run.store_error import StoreError
from nsa_doctor.artifacts.training_run.wandb_file import history
from nsa_doctor.core.errors import Caught, attempt

Row = dict[str, Any]
_EVENTS = "*.tfevents.*"
_OFFLINE = ".wandb"
_LARGEST, _MOST_FILES, _MOST_VALUES, _DEEPEST = 256 << 20, 2000, 2_000_000, 6
_SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
_PLACES = {  # globs below a folder that may be a run's, or hold several
    "mlflow": ("", "*", "*/*", "mlruns/*/*", "mlartifacts/*/*"),
    "events": (
        *("", "tensorboard", "runs", "runs/*", "logs", "logs/*", "tb_logs/*/*", "lightning_logs/version_*", "*"),
        *("tb/*", "tb/*/*"),  # torchtitan's
    ),
    "wandb": (
        *("", "wandb/latest-run", "wandb/offline-run-*", "wandb/run-*", "latest-run", "offline-run-*", "run-*"),
        *("tb/*/wandb/offline-run-*", "tb/*/*/wandb/offline-run-*"),
    ),
}
_NAMED = {"events": _EVENTS, "wandb": f"*{_OFFLINE}"}


def is_store(place: Path) -> bool:
    """Whether a tracker has stored a run under this name.

    A run's folder or database of MLflow, a run in such a database, a file of events or of wandb's.
    """
    if place.is_dir():
        return (place / "meta.yaml").is_file() and (place / "metrics").is_dir()
    if place.is_file():
        return ".tfevents." in place.name or place.suffix == _OFFLINE or is_database(place)
    return is_database(place.parent)


def stores_below(place: Path) -> list[Path]:
    """Those in a run's folder, or in one or a database of several runs, the newest first; what cannot be read last."""
    stores: dict[Path, float] = {}
    for kind, globs in _PLACES.items():
        places = (each for glob in globs for each in (place.glob(glob) if glob else [place]) if each.is_dir())
        named = _NAMED.get(kind)
        inner = (next(iter(sorted(each.glob(named))), each) if named else each for each in places)
        found = {each.resolve(): each for each in islice(inner, _MOST_FILES) if is_store(each)}
        stores.update({each: each.stat().st_mtime for each in found.values()})
    for database in [place] if is_database(place) else [each for each in sorted(place.glob("*")) if is_database(each)]:
        runs = attempt(lambda database=database: runs_in(database))
        stores.update({database: -math.inf} if isinstance(runs, Caught) or not runs else dict(runs))
    return sorted(stores, key=lambda each: stores[each], reverse=True)


def signature(place: Path) -> tuple[int, int]:
    """How much there is and when it was written last: what has not changed is not read again."""
    facts = [each.stat() for each in _files(place)]
    return sum(each.st_size for each in facts), max((each.st_mtime_ns for each in facts), default=0)


def rows_of(place: Path) -> list[Row]:
    """What was stored, a row for each step that something was stored of; raises StoreError."""
    is_in_database = is_database(place) or is_database(place.parent)
    if not is_in_database and sum(each.stat().st_size for each in _files(place)) > _LARGEST:
        raise StoreError(f"is larger than {_LARGEST >> 20} MiB and was not read")
    read = _mlflow if place.is_dir() else _wandb if place.suffix == _OFFLINE else _events
    if is_in_database:
        read = _mlflow_database
    found = attempt(lambda: read(place))
    if not isinstance(found, Caught):
        return found
    if isinstance(found.error, (StoreError, KeyboardInterrupt, SystemExit)):
        raise found.error
    raise StoreError(f"cannot be read: {found.sentence}")


def _files(place: Path) -> list[Path]:
    """The files of a store."""
    if (database := next((each for each in (place, place.parent) if is_database(each)), None)) is not None:
        return [each for each in (database, database.with_name(f"{database.name}-wal")) if each.is_file()]
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


def _mlflow_database(place: Path) -> list[Row]:
    """The metrics of a run in a database; a database itself holds none that can be named."""
    if is_database(place):
        runs_in(place)
        raise StoreError("holds no run of MLflow with metrics")
    return _by_step(values_in(place, _MOST_VALUES))


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
