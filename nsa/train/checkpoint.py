"""Checkpoints: a folder for each, complete or not there at all, and never a pickle.

checkpoints/step_00000200/ holds `model.safetensors`, `optimizer.safetensors`, `rng.safetensors`, `state.json` (step,
configuration, position in the data and all other scalars) and `manifest.json` with the SHA-256 of each. It is written
under a temporary name, flushed to the disk and renamed: a folder with that name is whole, unless the disk is at fault,
and that the manifest shows. One that takes the place of another of its step first renames that one to
.step_00000200.old, which counts as the checkpoint until the new one has the name.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nsa.train.files import make_folder, settle, write_json, write_tensors, writing

TENSORS = ("model", "optimizer", "rng")
_NAME = re.compile(r"step_(\d{8,})")
_REPLACED = re.compile(r"\.(step_\d{8,})\.old")
_MANIFEST, _STATE = "manifest.json", "state.json"
_FORMAT = 1


class UnreadableError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything a run needs to go on as if it had not stopped."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    rng: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def write_checkpoint(folder: Path, snapshot: Snapshot, keep_last: int) -> Path:
    """Save, then remove all but the last `keep_last`; raises CannotWriteError and leaves those before as they were."""
    final = folder / f"step_{snapshot.step:08d}"
    temporary, replaced = folder / f".{final.name}.tmp", folder / f".{final.name}.old"
    make_folder(folder)
    with writing(final):
        remove_unfinished(folder)
        try:
            temporary.mkdir()
            _write_files(temporary, snapshot)
            settle(temporary)
            if final.exists():
                final.rename(replaced)
            temporary.rename(final)
            settle(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            _put_back(replaced)
        before = [path for path in checkpoints(folder) if step_of(path) < snapshot.step]
        for old in reversed(before[max(keep_last - 1, 0) :]):
            old.rename(folder / f".{old.name}.removed")  # gone at once, whatever a removal is interrupted by
        remove_unfinished(folder)
    return final


def read_checkpoint(path: Path) -> Snapshot:
    """What `write_checkpoint` wrote; raises UnreadableError when a byte of it is missing or has changed."""
    manifest = _json(path / _MANIFEST)
    try:
        step, files = int(manifest["step"]), dict(manifest["files"])
        if manifest["format"] != _FORMAT:
            raise UnreadableError(f"{_MANIFEST} is of format {manifest['format']}, and {_FORMAT} is what can be read")
        expected = {name: (int(facts["bytes"]), str(facts["sha256"])) for name, facts in files.items()}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{_MANIFEST} does not list the files of a checkpoint") from None
    for name in (*(f"{part}.safetensors" for part in TENSORS), _STATE):
        if name not in expected:
            raise UnreadableError(f"{_MANIFEST} does not list {name}")
        _verify(path / name, *expected[name])
    try:
        parts = {part: load_file(path / f"{part}.safetensors") for part in TENSORS}
    except (SafetensorError, OSError) as error:
        raise UnreadableError(f"a tensor file cannot be read: {error}") from None
    return Snapshot(step=step, state=_json(path / _STATE), **parts)


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints in the folder, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) or _is_to_be_put_back(path)]
    return sorted(found, key=step_of, reverse=True)


def standing(path: Path) -> Path:
    """Where the checkpoint of that name is: elsewhere only when a save was killed while it replaced it."""
    replaced = path.with_name(f".{path.name}.old")
    return replaced if _is_to_be_put_back(replaced) else path


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    found = _NAME.fullmatch(_name_of(path))
    return int(found[1]) if found else -1


def remove_unfinished(folder: Path) -> None:
    """What a save that was killed left behind; a checkpoint that it was about to replace has its name again."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        _put_back(path)
        if path.name.startswith(".step_") and not _is_to_be_put_back(path):
            shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be read, so that it is neither chosen nor counted again."""
    target = path.with_name(f"unreadable_{_name_of(path)}")
    with writing(path):
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
    return target


def _name_of(path: Path) -> str:
    replaced = _REPLACED.fullmatch(path.name)
    return replaced[1] if replaced else path.name


def _is_to_be_put_back(path: Path) -> bool:
    """Whether it is the checkpoint of its step, under the name it has while another takes its place."""
    return bool(
        _REPLACED.fullmatch(path.name) and not path.with_name(_name_of(path)).exists() and (path / _MANIFEST).is_file()
    )


def _put_back(path: Path) -> None:
    if _is_to_be_put_back(path):
        with suppress(OSError):  # it counts under either name
            path.rename(path.with_name(_name_of(path)))


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    for part in TENSORS:
        write_tensors(folder / f"{part}.safetensors", getattr(snapshot, part))
    write_json(folder / _STATE, dict(snapshot.state))
    facts = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in _files(folder)}
    for path in _files(folder):
        settle(path)
    write_json(folder / _MANIFEST, {"format": _FORMAT, "step": snapshot.step, "files": facts})


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir())


def _verify(path: Path, size: int, sha256: str) -> None:
    try:
        if not path.is_file():
            raise UnreadableError(f"{path.name} is missing")
        if path.stat().st_size != size:
            raise UnreadableError(f"{path.name} has {path.stat().st_size} bytes, and had {size} when it was written")
        if _sha256(path) != sha256:
            raise UnreadableError(f"{path.name} is not what was written: its SHA-256 differs")
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UnreadableError(f"{path.name} is missing") from None
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{path.name} is not JSON") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"{path.name} is not a JSON object")
    return found
