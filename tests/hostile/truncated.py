"""Checkpoints cut short at two hundred random places."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.hostile import folders, odd
from tests.hostile.case import Case, gate_tensors, saved

_CUTS = {  # how often, and the faults that the result may be reported as
    "archive": (60, ("truncated", "empty")),
    "safetensors": (60, ("truncated", "empty")),
    "legacy": (20, ("truncated", "empty", "unsafe")),
    "index": (20, ("empty", "corrupt", "truncated")),
    "metadata": (20, ("truncated",)),
    "piece": (20, ("truncated",)),
}


def cases() -> Iterator[Case]:
    numbers = random.Random(0)
    for name, (count, kinds) in _CUTS.items():
        for index in range(count):
            yield Case(f"cut-{name}-{index}", _cut(_MAKE[name], numbers.random()), kinds)


def _cut(make: Callable[[Path], tuple[Path, Path]], share: float) -> Callable[[Path], Path]:
    def cut(folder: Path) -> Path:
        path, file = make(folder)
        data = file.read_bytes()
        file.write_bytes(data[: int(share * len(data))])
        return path

    return cut


def _archive(folder: Path) -> tuple[Path, Path]:
    path = saved(folder / "model.pt")
    return path, path


def _safetensors(folder: Path) -> tuple[Path, Path]:
    path = next(case for case in odd.cases() if case.name == "healthy-safetensors").make(folder)
    return Path(path), Path(path)


def _legacy(folder: Path) -> tuple[Path, Path]:
    path = folder / "old.pt"
    torch.save(gate_tensors(), path, _use_new_zipfile_serialization=False)
    return path, path


def _index(folder: Path) -> tuple[Path, Path]:
    path = next(case for case in folders.cases() if case.name == "sharded-healthy").make(folder)
    return Path(path), Path(path)


def _distributed(folder: Path) -> Path:
    return Path(next(case for case in folders.cases() if case.name == "distributed-healthy").make(folder))


def _metadata(folder: Path) -> tuple[Path, Path]:
    path = _distributed(folder)
    return path, path / ".metadata"


def _piece(folder: Path) -> tuple[Path, Path]:
    path = _distributed(folder)
    return path, next(path.glob("*.distcp"))


_MAKE = {
    "archive": _archive,
    "safetensors": _safetensors,
    "legacy": _legacy,
    "index": _index,
    "metadata": _metadata,
    "piece": _piece,
}
