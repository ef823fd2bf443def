"""Weights alone: read from a plain state dict (.pt) or a safetensors file, and written as both."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nsa.train.failures import RefusedError
from nsa.train.files import write_whole


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name; raises RefusedError. Nothing in the file is executed."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        OSError,
        RuntimeError,
        ValueError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ) as error:
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise RefusedError(f"--resume {path}: cannot be read as weights: {why}") from error
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


def _read_pickle(path: Path) -> object:
    if not is_zipfile(path):
        raise ValueError("it is no whole file of torch.save, which writes zip archives")
    return torch.load(path, map_location="cpu", weights_only=True)
