"""One file of the corpus, what must be said of it, and the canary that must stay away."""

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nsa_doctor.artifacts.checkpoint.fault import OPEN, USAGE

LAYER = "layers.0.attn.gate"
CANARY = "canary"


@dataclass(frozen=True)
class Case:
    """`make` writes it into a folder and gives its path; `kinds` are the faults it may be reported as.

    Without any it is read, and `code` is the exit code; `says` stands in the sentence, or in the report.
    """

    name: str
    make: Callable[[Path], Path | str]
    kinds: tuple[str, ...] = ()
    code: int = 0
    says: str = ""
    is_slow: bool = False

    @property
    def codes(self) -> set[int]:
        """The exit codes that say so."""
        return {2 if kind in USAGE else 3 if kind in OPEN else 1 for kind in self.kinds} or {self.code}


def canary(folder: Path) -> Path:
    """What any code of the corpus makes when it runs."""
    return folder / CANARY


def command(folder: Path) -> str:
    """What the code does."""
    return f"touch {canary(folder)}"


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


@dataclass(frozen=True)
class Kept:
    """Pickles as a reference to an entry of the archive."""

    count: Any
    key: Any = "0"
    kind: Any = torch.FloatStorage


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> Any:
        return ("storage", thing.kind, thing.key, "cpu", thing.count) if isinstance(thing, Kept) else None


def pickled(thing: Any, protocol: int = 2) -> bytes:
    """As torch.save pickles it."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(thing)
    return buffer.getvalue()


def tensor(kept: Any, size: Any, stride: Any, offset: Any = 0) -> Calls:
    """A tensor as torch.save describes it, whether there is such a one or not."""
    return Calls(torch._utils._rebuild_tensor_v2, kept, offset, size, stride, False, OrderedDict())


def gate_tensors() -> dict[str, torch.Tensor]:
    """A healthy layer."""
    generator = torch.Generator().manual_seed(0)
    drawn = lambda *shape: torch.randn(*shape, generator=generator) * 0.3  # noqa: E731
    return {
        "layers.0.attn.q_proj.weight": drawn(8, 8),
        f"{LAYER}.fc1.weight": drawn(8, 8),
        f"{LAYER}.fc1.bias": drawn(8),
        f"{LAYER}.fc2.weight": drawn(3, 8),
        f"{LAYER}.fc2.bias": torch.zeros(3),
    }


def archive(path: Path, data: bytes, entries: Mapping[str, bytes] | None = None, root: str = "archive/") -> Path:
    """A file as torch.save writes it, of just these parts."""
    usual = {f"{root}data.pkl": data, f"{root}byteorder": b"little", f"{root}version": b"3\n"}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**usual, **(entries or {})}.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o600 << 16
            file.writestr(info, content)
    return path


def saved(path: Path, thing: Any = None, **options: Any) -> Path:
    """A file that torch.save wrote."""
    torch.save(gate_tensors() if thing is None else thing, path, **options)
    return path


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file of this header, which may be text or what JSON makes of it."""
    import json

    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def written(name: str, content: bytes) -> Callable[[Path], Path]:
    """A case's `make` for plain bytes."""

    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return make


def is_root() -> bool:
    return os.geteuid() == 0
