"""Weights alone: read from a plain state dict (.pt) or a safetensors file, and written as both."""

import io
import pickle
import pickletools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nsa.train.failures import RefusedError
from nsa.train.files import write_whole

_MOST_PICKLE = 2**26
# What the pickle of a plain state dict asks for; all of it describes tensors, and none of it does anything else.
_PLAIN = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_(tensor(_v2|_v3)?|parameter(_with_state)?)|torch\.(Size|Tensor|device)"
    r"|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.(Parameter|Buffer)"
    r"|torch\.(storage\.Untyped|[A-Z]\w+)Storage|torch\.(u?int|b?float|complex|bool)\w*"
)
_AGAIN = "give weights that were saved as a plain state dict, best as safetensors"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name; raises RefusedError. Nothing in the file is executed."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        BadZipFile,
        OSError,
        RuntimeError,
        ValueError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ) as error:
        raise RefusedError(f"--resume {path}: cannot be read as weights: {_why(error)}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise RefusedError(f"--resume {path}: must be a plain state dict, tensors by name and nothing else")
    return {str(name): value for name, value in found.items()}


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """`model.safetensors` and `model.pt`."""
    on_cpu = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    write_whole(folder / "model.safetensors", save(on_cpu))
    content = io.BytesIO()
    torch.save(on_cpu, content)
    write_whole(folder / "model.pt", content.getvalue())


def _why(error: Exception) -> str:
    """The error in a line; torch's own advice on a pickle that it refuses is to load it with less care."""
    if isinstance(error, pickle.UnpicklingError):
        return f"its pickle is not that of a plain state dict; {_AGAIN}"
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _read_pickle(path: Path) -> object:
    if not is_zipfile(path):
        with path.open("rb") as file:
            _refuse_code(path, file.read(_MOST_PICKLE))  # it may be a pickle by itself
        raise ValueError("it is no whole file of torch.save, which writes zip archives")
    with ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("data.pkl"):
                _refuse_code(path, archive.open(entry).read(_MOST_PICKLE))
    return torch.load(path, map_location="cpu", weights_only=True)


def _refuse_code(path: Path, data: bytes) -> None:
    """Raise RefusedError where a pickle asks for more than tensors, before anything of it is executed."""
    asked = ""
    with suppress(ValueError, IndexError):  # of what is no whole pickle: torch.load refuses it
        asked = next((name for name in _asked_for(data) if not _PLAIN.fullmatch(name)), "")
    if asked:
        what = f"its pickle asks for {asked[:100]!r}, which a loader would call; nothing of it was executed"
        raise RefusedError(f"--resume {path}: cannot be read as weights: it is unsafe: {what}; {_AGAIN}")


def _asked_for(data: bytes) -> Iterator[str]:
    """Every name that a pickle asks for, as far as it can be read."""
    texts: list[str] = []
    for operation, argument, _ in pickletools.genops(data):
        if isinstance(argument, str):
            texts = [*texts[-1:], argument]
        if operation.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".", 1)
        elif operation.name == "STACK_GLOBAL":
            yield ".".join(texts)
        elif operation.name.startswith("EXT"):
            yield "a class by its number"
