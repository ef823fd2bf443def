"""Which module exactly: hashes of what it is made of and of the sources it was loaded from."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.identity import digest, digest_of_bytes


def made_of(module: nn.Module) -> str:
    """A hash of what the module is made of: classes, plain settings, and every tensor's name, shape and dtype."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: [_shape(tensor), str(tensor.dtype)] for name, tensor in tensors.items()}
    settings = {name: [_class(part), _settings(part)] for name, part in module.named_modules()}
    return digest({"tensors": shapes, "modules": settings})


def _settings(part: nn.Module) -> dict[str, str]:
    """Numbers, flags and words that a module was given: a window, a scale, whether it is causal."""
    own = {name: value for name, value in vars(part).items() if not name.startswith("_") and name != "training"}
    return {name: repr(value) for name, value in own.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    return type(value) in (bool, int, float, str) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _class(part: nn.Module) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _shape(tensor: Tensor) -> list[int]:
    return [] if is_lazy(tensor) else list(tensor.shape)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by its name; lazy ones have none yet."""
    known = {name: each for name, each in module.named_parameters() if not is_lazy(each)}
    return {name: tuple(parameter.shape) for name, parameter in known.items()}


def sources_of(packages: Sequence[str]) -> str:
    """A hash of the sources of everything loaded from these packages, whatever their order and place."""
    own = loaded_files(packages)
    contents = {name: attempt(lambda file=file: digest_of_bytes(Path(file).read_bytes())) for name, file in own.items()}
    return digest({name: hashed for name, hashed in contents.items() if isinstance(hashed, str)}) if own else ""


def loaded_files(packages: Sequence[str]) -> dict[str, str]:
    """The file of every module that was loaded from these packages, by its name."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.copy().items()}
    return {name: file for name, file in files.items() if isinstance(file, str) and name.partition(".")[0] in packages}


def file_of(module: nn.Module) -> str:
    """The file that defines its class, or nothing."""
    file = attempt(lambda: inspect.getsourcefile(type(module)))
    return file if isinstance(file, str) else ""


def sources_beside(module: nn.Module) -> list[str]:
    """The Python files in the folders of those that define the classes of the module and its parts; none of torch's."""
    kinds = {
        kind for part in module.modules() for kind in type(part).__mro__ if kind.__module__.split(".")[0] != "torch"
    }
    files = [attempt(lambda kind=kind: inspect.getsourcefile(kind)) for kind in kinds - {object}]
    folders = {Path(file).parent for file in files if isinstance(file, str) and Path(file).is_file()}
    return sorted(str(each) for folder in folders for each in folder.glob("*.py"))
