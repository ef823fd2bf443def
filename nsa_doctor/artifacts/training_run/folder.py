"""What lies in the folder of a run beside its heartbeats: facts, stacks, checkpoints, words of those who ended."""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nsa_doctor.artifacts.training_run.columns import number
from nsa_doctor.artifacts.training_run.record import Dump, Failure, Saved
from nsa_doctor.artifacts.training_run.weight_files import cut_short, differs_from_manifest

CHECKPOINT = re.compile(
    r"((checkpoint|ckpt|step|epoch|model)[-_.]?)+\d[\w-]*(\.(pt|pth|ckpt|safetensors))?|[\w-]+\.(pt|pth|ckpt|safetensors)"
)
_SET_ASIDE = re.compile(r"unreadable_(?P<name>.+)")
_STEP = re.compile(
    r"(?:step|checkpoint|ckpt|iter|global_step)[-_=.]?0*(\d{1,15})|[-_](\d{1,15})(?=\.\w+$|$)", re.IGNORECASE
)
_FAILURE = re.compile(r"failure_rank(\d{1,6})\.json")
_NOT_FINITE = re.compile(r"nonfinite_step_\d{1,15}")
_LARGEST_FACTS = 4 << 20
_LARGEST_DUMP = 1 << 18
_MOST_FILES = 50
_MOST_ROWS = 100_000
_MOST_SAVED = 10_000
_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".distcp")


def facts_in(path: Path, notes: list[str]) -> dict[str, Any]:
    """A JSON object of a bounded size; a note and nothing where it is none."""
    try:
        raw = b""
        if path.is_file():
            with path.open("rb") as file:
                raw = file.read(_LARGEST_FACTS + 1)
        found = json.loads(raw) if len(raw) <= _LARGEST_FACTS else None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        notes.append(f"{path.name}: is not a JSON object of at most {_LARGEST_FACTS >> 20} MiB and was not read")
        return {}
    return found


def dumps_in(folder: Path, names: Iterable[str]) -> Iterator[Dump]:
    """The watchdog's stacks, the earliest first."""
    for name in itertools.islice((name for name in names if name.startswith("watchdog_stackdump")), _MOST_FILES):
        text = _text(folder / name, _LARGEST_DUMP)
        if text is not None:
            yield Dump(name=name, text=text)


def nonfinite_in(folder: Path, names: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """What was kept of steps that were not finite, with `folder`, its name."""
    for name in itertools.islice((name for name in names if _NOT_FINITE.fullmatch(name)), _MOST_FILES):
        for inner in itertools.islice(listed(folder / name), _MOST_FILES):
            if (
                inner.startswith("step_rank")
                and inner.endswith(".json")
                and (facts := facts_in(folder / name / inner, []))
            ):
                yield {**facts, "folder": name}


def failures_in(folder: Path, names: Iterable[str]) -> Iterator[Failure]:
    """Words of processes that ended, in the order of ranks."""
    for name in itertools.islice((name for name in names if _FAILURE.fullmatch(name)), _MOST_FILES):
        facts = facts_in(folder / name, [])
        reason, found = facts.get("reason"), _FAILURE.fullmatch(name)
        if isinstance(reason, str) and found is not None:
            yield Failure(rank=int(found[1]), reason=reason[:2000], ts=number(facts.get("ts")))


def numbers_in(path: Path) -> Iterator[dict[str, float]]:
    """The rows of a small table, as far as they are numbers."""
    text = _text(path, _LARGEST_FACTS) or ""
    try:
        for row in itertools.islice(csv.DictReader(text.replace("\0", "").splitlines()), _MOST_ROWS):
            numbers = {str(name): number(value) for name, value in row.items() if not isinstance(value, list)}
            yield {name: value for name, value in numbers.items() if value is not None}
    except csv.Error:
        return


def saved_in(folder: Path, names: Iterable[str]) -> Iterator[Saved]:
    """What is called like a checkpoint, in the folder and in its `checkpoints`; with what is wrong at first sight.

    torchtitan calls the inner folder `checkpoint`.
    """
    deeper = (f"{inner}/{name}" for inner in ("checkpoints", "checkpoint") for name in listed(folder / inner))
    for name in itertools.islice(itertools.chain(names, deeper), _MOST_SAVED):
        last = name.rpartition("/")[2]
        aside = _SET_ASIDE.fullmatch(last)
        called = aside["name"] if aside else last
        if called == "checkpoints" or not CHECKPOINT.fullmatch(called) or called.endswith(("csv", "json", "tmp")):
            continue
        yield Saved(
            name=name, step=step_in(called), fault="was set aside: unreadable" if aside else fault_of(folder / name)
        )


def step_in(name: str) -> int | None:
    """The step that a checkpoint's name tells."""
    found = _STEP.search(name)
    return int(found[1] or found[2]) if found else None


def fault_of(path: Path) -> str:
    """Why a save that failed may have left this; nothing where it looks sound."""
    try:
        if not path.is_dir():
            return cut_short(path) if path.stat().st_size else "is empty"
        inner = list(itertools.islice(path.iterdir(), 1000))
        if not inner:
            return "is an empty folder"
        empty = next((each.name for each in inner if each.suffix in _WEIGHTS and not each.stat().st_size), None)
        if empty is not None:
            return f"holds an empty {empty}"
        is_nsa = path.parent.name == "checkpoints" and (path / "state.json").exists()
        if is_nsa:
            return differs_from_manifest(path) if (path / "manifest.json").exists() else "has no manifest.json"
        short = ((each.name, cut_short(each)) for each in inner if each.suffix in _WEIGHTS and each.is_file())
        return next((f"holds {name}, which {fault}" for name, fault in short if fault), "")
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"


def listed(folder: Path) -> list[str]:
    """The names in a folder; none where there is no such folder."""
    try:
        return sorted(path.name for path in itertools.islice(folder.iterdir(), _MOST_ROWS)) if folder.is_dir() else []
    except OSError:
        return []


def _text(path: Path, most: int) -> str | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", errors="replace")
    except OSError:
        return None
