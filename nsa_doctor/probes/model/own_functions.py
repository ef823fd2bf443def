"""The subject's own functions by name, whether a pass calls them or not."""

import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from linecache import getline
from types import CodeType, ModuleType
from typing import Any

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.built_module import BuiltModule

_OWN = 3  # the rank of the subject's own code
_DEFINES = re.compile(r"\s*(async )?def ")
_MOST_DECORATORS = 20
_MOST_MODULES = 400


@dataclass(frozen=True)
class OwnFunction:
    """A function, the name that it stands under, and where it is defined."""

    name: str
    function: Callable[..., Any]
    place: Place


def own_functions(sp: BuiltModule, is_meant: Callable[[str], bool]) -> Iterator[OwnFunction]:
    """Functions by such names that the subject's code has within reach, and static methods of its parts, each once.

    Within reach are the files of its classes and of what makes and calls it, and those whose names these import.
    """
    frames = FrameFilter(sp.subject.packages)
    held = [vars(each) for each in modules_within_reach(sp, frames)]
    held += [vars(kind) for kind in {type(part): None for part in sp.module.modules()}]
    seen: set[Any] = set()
    for names in held:
        for name, value in sorted(names.copy().items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            is_method = names.get("__qualname__") is not None or "__dict__" in names
            if not inspect.isfunction(function) or (is_method and function is value) or not is_meant(name):
                continue
            inner = inspect.unwrap(function)
            code = inner.__code__ if inspect.isfunction(inner) else function.__code__  # what wraps a builtin is its own
            if code not in seen and frames.rank_of(code) == _OWN:
                seen.add(code)
                where = Place(file=code.co_filename, line=_line_of(code), function=code.co_qualname)
                yield OwnFunction(name, function, where)


def _line_of(code: CodeType) -> int:
    """Of its name, below what decorates it."""
    first = code.co_firstlineno
    return next(
        (at for at in range(first, first + _MOST_DECORATORS) if _DEFINES.match(getline(code.co_filename, at))), first
    )


def modules_within_reach(sp: BuiltModule, frames: FrameFilter, *, with_packages: bool = False) -> Iterator[ModuleType]:
    """The subject's own Python modules, those of its parts first; also those that the packages around them import."""
    calls = (inspect.unwrap(each) for each in (sp.subject.build, sp.subject.forward))
    waiting = deque([*(type(part).__module__ for part in sp.module.modules()), *map(_home_of, calls)])
    seen = set[str]()
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.popleft()
        module, is_new = sys.modules.get(name), name not in seen
        seen.add(name)
        file = getattr(module, "__file__", None)
        if is_new and isinstance(module, ModuleType) and isinstance(file, str) and frames.rank(file) == _OWN:
            yield module
            waiting.extend(map(_home_of, vars(module).copy().values()))
            waiting.extend([name.rpartition(".")[0]] if with_packages else [])


def _home_of(value: Any) -> str:
    """The name of the Python module that it is, or that it was defined in."""
    if isinstance(value, ModuleType):
        return value.__name__
    home = getattr(value, "__module__", "") if inspect.isfunction(value) or inspect.isclass(value) else ""
    return home if isinstance(home, str) else ""
