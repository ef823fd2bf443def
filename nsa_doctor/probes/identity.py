"""Which module exactly: hashes of its shape and of the sources it was loaded from."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from nsa_doctor.identity import digest, digest_of_bytes
from nsa_doctor.runner import attempt


def shape_of(module: nn.Module) -> str:
    """A hash of every parameter's and buffer's name, shape and dtype: what a checkpoint of it has to fit."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return digest({name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()})


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by its name; lazy ones have none yet."""
    known = {name: each for name, each in module.named_parameters() if not isinstance(each, UninitializedTensorMixin)}
    return {name: tuple(parameter.shape) for name, parameter in known.items()}


def sources_of(packages: Sequence[str]) -> str:
    """A hash of the sources of everything loaded from these packages, whatever their order and place."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    own = {name: file for name, file in files.items() if isinstance(file, str) and name.partition(".")[0] in packages}
    contents = {name: attempt(lambda file=file: digest_of_bytes(Path(file).read_bytes())) for name, file in own.items()}
    return digest({name: hashed for name, hashed in contents.items() if isinstance(hashed, str)}) if own else ""


def file_of(module: nn.Module) -> str:
    """The file that defines its class, or nothing."""
    file = attempt(lambda: inspect.getsourcefile(type(module)))
    return file if isinstance(file, str) else ""
