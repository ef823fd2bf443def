"""What else makes a cache that a module's forward takes than a method of its own or a constructor beside it.

A method of its one part or of each layer, a function beside it, a method of the class itself (`Cache.empty(n_layers)`),
a constructor that wants a list of one entry for each layer; or whatever the subject's own code hands over by that name.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.cache_calls import OF_A_CLASS
from nsa_doctor.adapters.cache_in_code import by_own_code
from nsa_doctor.adapters.decoding_starts import (
    FIRST_STATE,
    Start,
    TriedOnce,
    by_making,
    cache_classes,
    num_layers,
    num_required,
    value_for,
)
from nsa_doctor.core.errors import Caught, attempt

_MOST_FILES = 40
_SEVERAL = re.compile(r"\b(list|sequence|mutablesequence|tuple)\b", re.IGNORECASE)
_NAMED = re.compile(r"\b(dict|mapping|mutablemapping)\b", re.IGNORECASE)


def by_makers(module: nn.Module, name: str, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """(words, what makes a cache) for a parameter of that name of the module's forward, each once.

    What raises the first time is not tried again.
    """
    ways = (
        *by_own_code(module, name, [*own_files(module, packages), *_files_beside(module, packages)], packages),
        *_by_parts(module, packages),
        *_by_functions(module, packages),
        *_by_methods_of_classes(module, packages),
        *_by_lists(module, packages),
    )
    seen: set[str] = set()
    for words, start in ways:
        if words not in seen:
            seen.add(words)
            yield words, TriedOnce(start)


def _files_beside(module: nn.Module, packages: Sequence[str]) -> list[ModuleType]:
    """Further files of the package that its class is in."""
    package = type(module).__module__.rpartition(".")[0]
    known = own_files(module, packages) if package.partition(".")[0] in packages else []
    names = [name for name in sorted(sys.modules) if known and name.rpartition(".")[0] == package][:_MOST_FILES]
    return [file for file in map(sys.modules.get, names) if isinstance(file, ModuleType) and file not in known]


def own_files(module: nn.Module, packages: Sequence[str]) -> list[ModuleType]:
    """The Python modules of its classes and of its parts', as far as they are the subject's own."""
    names = dict.fromkeys(type(each).__module__ for each in module.modules())
    own = (name for name in names if name.partition(".")[0] in packages or name == "__main__")
    return [sys.modules[name] for name in own if name in sys.modules]


def _by_parts(module: nn.Module, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """Methods of parts; of those that stand in a list, one cache of each, in a list."""
    for path, part in module.named_modules():
        layers = list(part.children()) if isinstance(part, (nn.ModuleList, nn.Sequential)) else []
        of_each = [dict(by_making(each)) if _is_own(each, packages) else {} for each in layers]
        for words in of_each[0] if of_each else ():
            if all(words in each for each in of_each):

                def of_layers(module: nn.Module, x: Tensor, path: str = path, words: str = words) -> list[Any]:
                    return [dict(by_making(each))[words](each, x) for each in module.get_submodule(path).children()]

                yield f"{words} of each of {path}", of_layers
        if part is module or not _is_own(part, packages) or re.search(r"(^|\.)\d+(\.|$)", path):
            continue
        for words, start in by_making(part):
            yield f"{path}.{words}", lambda module, x, path=path, start=start: start(module.get_submodule(path), x)


def _is_own(part: nn.Module, packages: Sequence[str]) -> bool:
    return type(part).__module__.partition(".")[0] in (*packages, "__main__")


def _by_functions(module: nn.Module, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """Functions of the files of its classes that are named for making a first state."""
    for file in own_files(module, packages):
        for name, function in sorted(vars(file).copy().items()):
            is_own = inspect.isfunction(function) and function.__module__.partition(".")[0] in (*packages, "__main__")
            if is_own and FIRST_STATE.fullmatch(name) and num_required(function) >= 0:
                yield from _given_by_names(module, name, function)


def _by_methods_of_classes(module: nn.Module, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """Class methods and static methods of the classes of caches."""
    for kind in cache_classes(module, packages):
        for name, value in vars(kind).copy().items():
            is_one = isinstance(value, (classmethod, staticmethod))
            if is_one and (OF_A_CLASS.fullmatch(name) or FIRST_STATE.fullmatch(name)):
                yield from _given_by_names(module, f"{kind.__name__}.{name}", getattr(kind, name))


def _by_lists(module: nn.Module, packages: Sequence[str]) -> Iterator[tuple[str, Start]]:
    """Constructors one of whose arguments is a list of one entry for each layer, or a dictionary."""
    for kind in cache_classes(module, packages):
        signature = attempt(lambda kind=kind: inspect.signature(kind))
        needed = [] if num_required(kind) < 1 or isinstance(signature, Caught) else list(signature.parameters.values())
        needed = needed[: num_required(kind)]
        said = [each.annotation if isinstance(each.annotation, str) else str(each.annotation) for each in needed]
        lists = {each.name for each, words in zip(needed, said, strict=True) if _SEVERAL.search(words)}
        named = {each.name for each, words in zip(needed, said, strict=True) if _NAMED.search(words)} - lists
        if lists or named:
            yield from _given_by_names(module, kind.__name__, kind, lists=lists, named=named)


def _given_by_names(
    module: nn.Module,
    label: str,
    function: Callable[..., Any],
    lists: set[str] | None = None,
    named: set[str] | None = None,
) -> Iterator[tuple[str, Start]]:
    """A call whose arguments are known by their names; nothing where one is not."""
    names = list(inspect.signature(function).parameters)[: num_required(function)]

    def argument(module: nn.Module, name: str, x: Tensor) -> Any:
        if lists and name in lists:
            return [None] * num_layers(module)
        return {} if named and name in named else value_for(module, name, x)

    known = (attempt(lambda name=name: argument(module, name, torch.zeros(1, 1))) for name in names)
    if not any(isinstance(each, Caught) for each in known):
        yield (
            f"{label}({', '.join(names)})",
            lambda module, x: function(*(argument(module, name, x) for name in names)),
        )
