"""Where a run begins: from nothing, from a checkpoint, or from weights alone; and whose folder it writes into."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nsa.config import RunConfig
from nsa.train.checkpoint import Snapshot, UnreadableError, checkpoints, read_checkpoint, set_aside, standing
from nsa.train.failures import RefusedError
from nsa.train.files import lock, make_folder, writing
from nsa.train.weights import read_weights

_OWN_FILES = ("env.json", "training.csv", "metrics.json", "model.safetensors", "model.pt")
_MOST_KEYS = 5
# What may differ between the lives of a run: where it writes, how it is watched, and what it runs on.
_FREE = frozenset(
    f"train.{key}"
    for key in ("out_dir", "log_every", "eval_every", "eval_batches", "sample_tokens", "save_every", "keep_last")
) | {"train.on_nonfinite", "train.watchdog_seconds", "data.limit_seconds"}
_FREE_SECTIONS = ("runtime.",)
_NOT_FREE = frozenset({"runtime.precision"})


@dataclass(frozen=True, kw_only=True)
class Start:
    """`snapshot` to go on from, or `weights` to begin with, or neither; `notes` are for a person to read."""

    msg: str = "started"
    snapshot: Snapshot | None = None
    weights: Mapping[str, Tensor] | None = None
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The last step that was made."""
        return 0 if self.snapshot is None else self.snapshot.step


def find_start(config: RunConfig, resume: str | None) -> Start:
    """What `--resume` asks for: None, `auto`, a checkpoint, a folder with checkpoints, or a file of weights.

    Raises RefusedError, and changes nothing but the names of checkpoints that cannot be read.
    """
    folder = Path(config.train.out_dir)
    if resume == "auto":
        return _newest(folder, config)
    if resume is None:
        _refuse_a_run_in(folder, "go on with --resume auto")
        return Start()
    path = standing(Path(resume))
    if path.is_file():
        _refuse_a_run_in(folder, "weights begin a new run")
        return Start(
            msg=f"started from the weights in {path.name}",
            weights=read_weights(path),
            notes=(
                f"took the weights in {path} and nothing else: optimizer, schedule and data start from the beginning",
            ),
        )
    if not path.is_dir():
        raise RefusedError(f"--resume {path}: no such file or folder; give a checkpoint, a run's folder or auto")
    return _from_folder(path, folder, config)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from training into the same folder."""
    make_folder(folder)
    path = folder / ".lock"
    with writing(path):
        file = path.open("w", encoding="utf-8")
    with file:
        if not lock(file):
            raise RefusedError(f"train.out_dir {folder} is in use by another process; end it or give another folder")
        yield


def _from_folder(path: Path, folder: Path, config: RunConfig) -> Start:
    """From a checkpoint by name, or from the newest of a run."""
    if not (path / "manifest.json").is_file():
        if checkpoints(path / "checkpoints"):
            return _newest_of(path, folder, config)
        raise RefusedError(f"--resume {path}: holds no checkpoint (no manifest.json, and no checkpoints/step_*)")
    found = checkpoints(folder / "checkpoints")
    if found and path.resolve() in {each.resolve() for each in found} and path.resolve() != found[0].resolve():
        raise RefusedError(
            f"--resume {path}: {found[0].name} is newer and would be overwritten; branch off into another train.out_dir"
        )
    if path.resolve().parent != (folder / "checkpoints").resolve():
        _refuse_a_run_in(folder, "a run that branches off needs a folder of its own")
    try:
        snapshot = read_checkpoint(path)
    except UnreadableError as error:
        raise RefusedError(f"--resume {path}: {error}") from error
    _refuse_another_config(snapshot.state.get("config"), config, str(path))
    return Start(msg=f"resumed from {path.name}", snapshot=snapshot)


def _newest_of(path: Path, folder: Path, config: RunConfig) -> Start:
    if path.resolve() == folder.resolve():
        return _newest(folder, config)
    _refuse_a_run_in(folder, "a run that branches off needs a folder of its own")
    return _from_folder(checkpoints(path / "checkpoints")[0], folder, config)


def _newest(folder: Path, config: RunConfig) -> Start:
    """The newest checkpoint that can be read; from nothing when none was finished yet."""
    recorded = _recorded_config(folder)
    if recorded is None:
        _refuse_a_run_in(folder, "it does not say (env.json) of which configuration it is")
        return Start(notes=("there is no checkpoint yet: begins at step 1",))
    _refuse_another_config(recorded, config, str(folder))
    unreadable: list[str] = []
    for path in checkpoints(folder / "checkpoints"):
        try:
            snapshot = read_checkpoint(path)
        except UnreadableError as error:
            unreadable.append(f"{path}: {error}")
            continue
        _refuse_another_config(snapshot.state.get("config"), config, str(path))
        moved = tuple(f"{why}; set aside, and {path.name} used" for why in unreadable)
        for bad in checkpoints(folder / "checkpoints")[: len(unreadable)]:
            set_aside(bad)
        return Start(msg=f"resumed from {path.name}", snapshot=snapshot, notes=moved)
    if unreadable:
        raise RefusedError(f"no checkpoint in {folder} can be read: {unreadable[0]}")
    return Start(notes=("there is no checkpoint yet: begins at step 1",))


def _refuse_a_run_in(folder: Path, advice: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise RefusedError(f"train.out_dir {folder} is not a folder; give another")
    with writing(folder):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    own = [name for name in names if name in _OWN_FILES or name.startswith("heartbeat_rank")]
    if own or ("checkpoints" in names and checkpoints(folder / "checkpoints")):
        raise RefusedError(
            f"train.out_dir {folder} holds a run ({(own or ['checkpoints'])[0]}), and none is overwritten: {advice}, "
            "or give another train.out_dir"
        )


def _recorded_config(folder: Path) -> Any:
    try:
        found = json.loads((folder / "env.json").read_bytes())
        return found.get("config") if isinstance(found, dict) else None
    except (OSError, ValueError, RecursionError):
        return None


def _refuse_another_config(recorded: Any, config: RunConfig, where: str) -> None:
    wanted, found = _flat(config.model_dump(mode="json")), _flat(recorded if isinstance(recorded, dict) else {})
    differing = [
        f"{key} ({found.get(key, 'nothing')!r}, asked for {wanted.get(key, 'nothing')!r})"
        for key in sorted(wanted.keys() | found.keys())
        if found.get(key) != wanted.get(key) and not _is_free(key)
    ]
    if differing:
        more = f" and {len(differing) - _MOST_KEYS} more" if len(differing) > _MOST_KEYS else ""
        raise RefusedError(f"{where} is of another configuration: {', '.join(differing[:_MOST_KEYS])}{more}")


def _is_free(key: str) -> bool:
    return key in _FREE or (key.startswith(_FREE_SECTIONS) and key not in _NOT_FREE)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{prefix}{key}.") if isinstance(part, dict) else {f"{prefix}{key}": part}
    return found
